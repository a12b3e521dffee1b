"""Storage that fails during a training: it trains on, says so, and commits when it can."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import waiting
from tests.marks import slow
from tests.ranks.processes import files, ranks, train
from tests.storage.doubles.fault_proxy import FaultProxy

CONFIG: dict[str, Any] = {
    "workload": "tests.rank.tiny:Tiny",
    "batch_size": 32,
    "epochs": 2,
    "checkpoint_every_steps": 1,
    "checkpoint_backpressure": "wait",
    "num_shards": 2,
    "keep_last": 2,
}
STEP = 4
"""Where the outage begins; a run has ten steps."""


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What becomes of a run that nobody disturbed."""
    storage = str(tmp_path_factory.mktemp("undisturbed"))
    return train(storage, "run", attempt=1, workers=1, config=CONFIG)


def wait_for(what: Callable[[], object], process: Any, log: Path) -> None:
    waiting.wait_for(what, 60, log.read_text, ended=lambda: process.exitcode)


def train_through(
    storage: str,
    home: Path,
    workers: int,
    begin_outage: Callable[[], None],
    end_outage: Callable[[], None],
    **more: Any,
) -> str:
    """Train, with an outage that ends when it was noticed; what the ranks say, and how it ended."""
    task = {"storage": storage, "home": str(home), "run": "run", "attempt": 1, "config": CONFIG}
    log, outcome = files(task)
    # The other ranks wait for rank 0 at the step where it stands still.
    with ranks(
        task | more, workers, {"point": "stop_before_step", "step": STEP, "rank": 0}
    ) as all_:
        first = psutil.Process(all_[0].pid)
        wait_for(lambda: first.status() == psutil.STATUS_STOPPED, all_[0], log)
        begin_outage()
        first.resume()
        wait_for(lambda: "was not saved, training goes on" in log.read_text(), all_[0], log)
        end_outage()
        for process in all_:
            process.join(90)
            assert process.exitcode == 0, log.read_text()
    assert "checkpoints are saved again" in log.read_text()
    return outcome.read_text()


@contextmanager
def small_disk(at: Path, size: str) -> Iterator[Path]:
    at.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", at], check=False
    )
    if mounted.returncode:
        pytest.skip("a disk of its own can be mounted by root only")
    try:
        yield at
    finally:
        subprocess.run(["umount", at], check=True)


@pytest.mark.parametrize("workers", [slow(1), 2])
def test_a_disk_that_is_full_for_a_while(workers: int, tmp_path: Path, reference: Any) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk:
        ballast = disk / "ballast"

        def fill() -> None:
            subprocess.run(["dd", "if=/dev/zero", f"of={ballast}", "bs=4k"], check=False)
            assert shutil.disk_usage(disk).free == 0

        ended = train_through(str(disk), tmp_path / "home", workers, fill, ballast.unlink)
        assert json.loads(ended) == reference
        assert not [name for name in os.listdir(disk) if name != "run"]


@pytest.mark.s3
@pytest.mark.parametrize("workers", [1, slow(2)])
def test_object_storage_that_is_down_for_a_while(
    workers: int,
    object_store: str,
    tmp_path: Path,
    reference: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = os.environ["AWS_ENDPOINT_URL"]
    proxies = [FaultProxy(server).__enter__()]
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxies[0].url)
    port = proxies[0].server_address[1]
    try:
        ended = train_through(
            f"{object_store}/outage-{workers}",
            tmp_path,
            workers,
            lambda: proxies.pop().__exit__(),
            lambda: proxies.append(FaultProxy(server, port).__enter__()),
            patience={"budget_s": 3.0},
        )
    finally:
        for proxy in proxies:
            proxy.__exit__()
    assert json.loads(ended) == reference
