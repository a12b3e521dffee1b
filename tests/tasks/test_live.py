from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from evertrain_flows.cli.app import main
from evertrain_tasks.driver_session.ticker import Ticker
from tests.storage.samples import record
from train_core.client.live import LiveReader
from train_core.storage.coordination import lease
from train_core.storage.records.names import LIVE_JSON
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import create_run

LINE = "step 6/10  epoch 0/1  loss 0.5000  1,234 samples/s  3 s left"


def write_live(folder: RunFolder, time: float, step: int = 5) -> None:
    live = {"stage": "train", "attempt": 1, "step": step, "total_steps": 10, "epoch": 0}
    live |= {"epochs": 1, "loss": 0.5, "samples_per_s": 1234.0, "eta_s": 3.0, "time": time}
    folder.store.write(LIVE_JSON, json.dumps(live).encode())


def test_what_an_earlier_attempt_left_is_not_told(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path), "r")
    write_live(folder, time=1.0)
    reader = LiveReader(folder)
    assert reader.read() is None
    write_live(folder, time=2.0, step=6)
    live = reader.read()
    assert live is not None
    assert str(live) == LINE
    assert live.percent == 60
    assert reader.read() is None


@pytest.mark.promise("runs-list")
def test_the_status_of_a_run_that_is_driven_tells_where_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(str(tmp_path), "r")
    create_run(folder, record("r"))
    held = lease.acquire(folder.store, "r")
    write_live(folder, time=1.0, step=6)
    asked = ["runs", "status", "r", "--storage", str(tmp_path)]

    def shown() -> str | None:
        assert main(asked) == 0
        lines = capsys.readouterr().out.splitlines()
        return dict(line.strip().split("  ", 1) for line in lines).get("live", "nothing").strip()

    with lease.alive(held):
        assert shown() == f"train: {LINE}"
        assert main([*asked, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["live"]["step"] == 6
    held.release()
    assert shown() == "nothing"
    # The last attempt's reading is left out.
    with lease.alive(lease.acquire(folder.store, "r")):
        assert shown() == "-"


def test_a_run_that_tells_nothing_yet_is_no_error(tmp_path: Path) -> None:
    assert LiveReader(RunFolder(str(tmp_path), "r")).read() is None


def test_who_interrupts_a_block_waits_for_no_tick() -> None:
    """A server that is away must not keep a training from being asked to save."""
    is_ticking, may_end, ticks = threading.Event(), threading.Event(), []

    def tick() -> None:
        ticks.append(threading.current_thread())
        is_ticking.set()
        assert may_end.wait(30)

    def interrupt() -> None:
        with Ticker(tick, every_s=0.01):
            assert is_ticking.wait(30)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    (ticking,) = ticks
    assert ticking.is_alive()
    may_end.set()
    ticking.join(30)
    # And there was no last one.
    assert len(ticks) == 1


def test_a_ticker_ticks_at_the_end_and_then_no_more() -> None:
    ticks = []
    with Ticker(lambda: ticks.append(threading.current_thread().name), every_s=3600):
        assert ticks == []
    assert len(ticks) == 1
