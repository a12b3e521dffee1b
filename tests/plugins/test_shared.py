"""A server of all processes is started once, and ends after the last one that uses it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.plugins.order import LOCKS
from tests.plugins.shared import Shared


def test_the_first_one_starts_it_and_ends_it_after_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LOCKS, str(tmp_path))
    said: list[str] = []

    @contextmanager
    def start(folder: Path) -> Iterator[str]:
        said.append("started")
        yield f"address of {folder.name}"
        said.append("ended")

    first, second, late = Shared(), Shared(), Shared()
    given = tmp_path / "server", "address of server"
    assert first.started_once("server", start) == given
    assert second.started_once("server", start) == given
    closing = threading.Thread(target=first.close)
    closing.start()
    closing.join(0.2)
    assert said == ["started"]
    second.close()
    closing.join(30)
    assert said == ["started", "ended"]
    assert late.started_once("server", start) == given
    late.close()
    assert said == ["started", "ended"] * 2
