"""A folder that cannot be used is told at once, in a line that names it; nothing is created."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from typing import NoReturn

import pytest

from evertrain_flows.cli.app import UNREAD, main
from tests import commands
from tests.rank.alone import create
from train_core import TrainConfig
from train_core.cluster.runtime import check_folders
from train_core.errors import ConfigError
from train_core.storage.objects.store import Store
from train_core.storage.run_folder import RunFolder

RETRAIN = ("retrain", "--run", "refused", "--epochs", "1")


@pytest.fixture(autouse=True)
def _nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREFECT_API_URL", "PREFECT_HOME", "MLFLOW_TRACKING_URI", "EVERTRAIN_STORAGE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.promise("one-line-refusal")
@pytest.mark.parametrize("name", ["100% what", "what? 1", "number #1", "a::b"])
def test_a_folder_whose_name_no_address_can_have(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    assert main([*RETRAIN]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert str(folder) in shown.err
    assert "rename the folder" in shown.err
    assert list(folder.iterdir()) == []


@pytest.mark.promise("one-line-refusal")
def test_a_home_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/proc/nobody")
    assert main([*RETRAIN]) == 2
    assert capsys.readouterr().err == (
        "evertrain: Prefect's home /proc/nobody/.prefect cannot be written (No such file or "
        "directory): set PREFECT_HOME, or HOME, to a folder that can be written\n"
    )
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match=r"^Ray keeps its token in /proc/nobody/\.ray, which "):
        check_folders()


@pytest.mark.promise("one-line-refusal")
@pytest.mark.parametrize("variable", ["TMPDIR", "RAY_TMPDIR"])
def test_a_folder_too_long_for_rays_sockets(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    longest = "/" + 38 * "x"
    monkeypatch.setenv(variable, longest)
    check_folders()
    monkeypatch.setenv(variable, f"{longest}xx")
    with pytest.raises(ConfigError, match=rf"^{variable} is too .* at least 2 characters shorter"):
        check_folders()


@pytest.mark.promise("one-line-refusal")
def test_a_disk_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(ConfigError, match=f"^the file system of {tmp_path} has no hard links"):
        Store(str(tmp_path)).probe()
    assert list(tmp_path.iterdir()) == []


def test_ls_takes_a_storage_as_its_neighbours_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    create(RunFolder(str(tmp_path / "elsewhere"), "first"), TrainConfig())
    assert main(["ls", "--storage", "elsewhere"]) == 0
    assert "first" in capsys.readouterr().out
    assert main(["ls", "first", "--storage", "elsewhere"]) == 0
    assert f"no checkpoints in {tmp_path}/elsewhere/first" in capsys.readouterr().out


def test_a_reader_that_has_seen_enough_ends_the_command_in_silence(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as output:
        done = subprocess.run(
            [*commands.EVERTRAIN, "ls", "--json"],
            cwd=tmp_path,
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (UNREAD, "")
