from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.chaos.servers.switch import Switch, Way
from tests.web import QuietFiles, served


@pytest.fixture
def switch(tmp_path: Path) -> Iterator[Switch]:
    (tmp_path / "there").write_text("hello")
    with served(partial(QuietFiles, directory=tmp_path)) as url, Switch(url) as switch:
        yield switch


def get(switch: Switch) -> bytes | int:
    try:
        with urllib.request.urlopen(f"{switch.url}/there", timeout=1) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def test_each_request_is_answered_as_the_switch_stands(switch: Switch) -> None:
    assert get(switch) == b"hello"
    switch.turn(Way.ANSWERS_500)
    assert get(switch) == 500
    switch.turn(Way.ANSWERS_401)
    assert get(switch) == 401
    switch.turn(Way.SILENT)
    with pytest.raises(TimeoutError):
        get(switch)
    switch.turn(None)
    assert get(switch) == b"hello"
    assert switch.schedule.hits == ["GET /there"] * 3
