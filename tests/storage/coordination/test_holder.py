"""Which process lives: no clock that somebody sets has a part in it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.commands import said_by
from tests.storage.coordination.test_lease import driver_of
from tests.storage.samples import commit
from train_core.errors import RunBusyError
from train_core.storage.coordination import holder, lease
from train_core.storage.coordination.holder import Holder, Life, judge
from train_core.storage.coordination.pins import pinned, valid_pins
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import begin_attempt

linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system has no /proc")


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(str(tmp_path / "runs"), "run")


@pytest.fixture
def stepped_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`/proc` as it is after the wall clock was set 90 s ahead: `btime` moves with it."""
    fake = tmp_path / "proc"
    fake.mkdir()
    for entry in os.scandir("/proc"):
        (fake / entry.name).symlink_to(entry.path)
    (fake / "stat").unlink()
    lines = Path("/proc/stat").read_text().splitlines()
    moved = [
        f"btime {int(line.split()[1]) + 90}" if line.startswith("btime") else line for line in lines
    ]
    (fake / "stat").write_text("\n".join(moved) + "\n")
    with monkeypatch.context() as patched:
        patched.setattr(psutil, "PROCFS_PATH", str(fake))
        # Of psutil 7.0, times of processes follow what this function has read last.
        psutil.boot_time()
        yield
    psutil.boot_time()


@linux
def test_a_driver_keeps_its_run_and_its_pins_when_the_wall_clock_steps(
    folder: RunFolder, request: pytest.FixtureRequest
) -> None:
    begin_attempt(folder).release()
    name = commit(folder, 1, attempt=1)
    with driver_of(folder) as driver:
        assert said_by(driver) == "2"
        with pinned(folder.store, [name], "infer"):
            before = psutil.Process().create_time()
            request.getfixturevalue("stepped_clock")
            assert psutil.Process().create_time() - before == pytest.approx(90)
            assert len(valid_pins(folder.store)) == 1
            with pytest.raises(RunBusyError, match=f"process {driver.pid}"):
                begin_attempt(folder)


HERE = Holder.here()
DEAD = HERE.model_copy(update={"process_start": "", "process_started": 1.0})
ELSEWHERE = HERE.model_copy(update={"machine": "another"})


@pytest.mark.parametrize(
    ("found", "has_ended", "stands_still", "life"),
    [
        (HERE, False, None, Life.ALIVE),
        (HERE, True, None, Life.DEAD),
        # What can be looked up needs no heartbeat.
        (HERE, False, True, Life.ALIVE),
        (DEAD, False, None, Life.DEAD),
        (DEAD, False, False, Life.DEAD),
        (ELSEWHERE, False, None, Life.UNKNOWN),
        (ELSEWHERE, False, True, Life.DEAD),
        (ELSEWHERE, False, False, Life.ALIVE),
        (ELSEWHERE, True, False, Life.DEAD),
    ],
)
def test_a_holder_is_judged_by_what_ended_its_process_and_its_heartbeat_in_that_order(
    found: Holder, has_ended: bool, stands_still: bool | None, life: Life
) -> None:
    assert judge(found, has_ended=has_ended, stands_still=stands_still) is life


@linux
def test_a_process_that_has_the_number_of_a_dead_one_is_another() -> None:
    here = Holder.here()
    assert here.life is Life.ALIVE
    assert here.model_copy(update={"process_start": f"1{here.process_start}"}).life is Life.DEAD


def test_what_an_earlier_version_wrote_is_judged_by_what_it_has() -> None:
    earlier = Holder.here().model_copy(update={"process_start": ""})
    assert earlier.life is Life.ALIVE
    assert earlier.model_copy(update={"process_started": 1.0}).life is Life.DEAD
    # An earlier version reads the newer documents, and finds the time that it looks for.
    assert abs(Holder.here().process_started - psutil.Process().create_time()) < 1


@linux
def test_ticks_of_another_time_namespace_say_nothing() -> None:
    here = Holder.here()
    elsewhere = here.model_copy(update={"process_start": "1 time:[1]"})
    assert elsewhere.life is Life.UNKNOWN


@contextmanager
def process(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, stdin=subprocess.PIPE) as found:
        try:
            yield found
        finally:
            found.kill()


@linux
def test_a_process_that_the_system_hides_is_not_taken_for_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `hidepid=2`: `/proc` has no folder for it, and a signal would reach it."""
    empty = tmp_path / "proc"
    (empty / "self").mkdir(parents=True)
    (empty / "self" / "stat").write_text("")
    with process(sys.executable, "-c", "input()") as hidden:
        found = Holder.here().model_copy(update={"pid": hidden.pid})
        monkeypatch.setattr(holder, "PROC", empty)
        assert found.life is Life.UNKNOWN
    assert found.life is Life.DEAD


@linux
@pytest.mark.parametrize("name", ["a) R 1 (b", "x y)", "((("])
def test_a_name_with_brackets_hides_nothing(name: str) -> None:
    setup = "import ctypes, sys; ctypes.CDLL(None).prctl(15, sys.argv[1].encode()); input()"
    with process(sys.executable, "-c", f"{setup}", name) as found:
        while name not in Path(f"/proc/{found.pid}/stat").read_text():
            assert found.poll() is None
        stat = holder._stat_of(found.pid)
        assert stat is not None
        assert stat[0] in "SRD"
        start = int(holder._start_of(stat).split()[0])
        assert start >= int(Holder.here().process_start.split()[0])


def test_a_holder_that_is_hidden_keeps_its_run_while_its_heartbeat_moves(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with driver_of(folder) as driver:
        assert said_by(driver) == "1"
        empty = tmp_path / "proc"
        (empty / "self").mkdir(parents=True)
        (empty / "self" / "stat").write_text("")
        monkeypatch.setattr(holder, "PROC", empty)
        assert lease.holder_of(folder.store) is not None
        assert not lease.is_over(folder.store, 1)
