"""A run that is extended, or forked, and killed in what follows, ends as if nobody touched it.

The schedule is a cycle over what was asked at first: what becomes of it beyond that is read from
the run's record, which these runs have as the product makes it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.marks import slow
from tests.rank.digests import journal_of
from tests.rank.test_exact import CONFIG
from tests.ranks.processes import train
from train_core.config import TrainConfig
from train_core.driver.preparing.preflight import new_record
from train_core.rank.data.recorded_workload import check_continuation, with_defaults
from train_core.requests import DriverRequest
from train_core.storage.fork import fork_checkpoint
from train_core.storage.records.amendments import Amendment
from train_core.storage.records.names import CheckpointName
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import RunWriter, begin_attempt, create_run

# 5 steps an epoch.
ASKED = CONFIG | {"epochs": 1, "keep_last": 99}
EXTENDED = ASKED | {"epochs": 3}


def drive(folder: RunFolder, workers: int, config: dict[str, Any], **fault: Any) -> Any:
    """An attempt by so many real ranks, as the driver makes it; None if it was killed."""
    asked = TrainConfig(**config, num_workers=workers)
    request = DriverRequest(storage=folder.storage, run=folder.name, config=asked)
    if not folder.exists():
        create_run(folder, new_record(request, asked, {}))
    held = begin_attempt(folder)
    try:
        check_continuation(folder, asked)
        recorded = with_defaults(asked).recorded()
        last = Amendment(config=recorded, pipeline=request.recorded().model_dump())
        RunWriter(folder, held.attempt).amend(last)
        how: dict[str, Any] = {"attempt": held.attempt, "workers": workers, **fault}
        return train(folder.storage, folder.name, config=config, **how)
    finally:
        held.release()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, str]:
    """A run of one epoch that was extended to three, by one worker and without a kill."""
    folder = RunFolder(str(tmp_path_factory.mktemp("undisturbed")), "run")
    drive(folder, 1, ASKED)
    found = drive(folder, 1, EXTENDED)
    assert found["resumed_from"] == 5
    return folder, found["digest"]


def learning_rates(folder: RunFolder) -> dict[int, float]:
    named = "train/learning_rate"
    return {step: metrics[named] for step, metrics in journal_of(folder) if named in metrics}


@pytest.mark.promise("extend-and-fork")
@pytest.mark.parametrize(
    ("point", "step", "newest"),
    [slow("in_step", 5, 5), ("in_step", 7, 6), slow("before_manifest", 10, 8)],
    ids=["first step", "mid-epoch", "before manifest"],
)
def test_an_extension_that_is_killed_ends_as_one_that_nobody_touched(
    undisturbed: tuple[RunFolder, str], point: str, step: int, newest: int, tmp_path: Path
) -> None:
    folder = RunFolder(str(tmp_path), "run")
    drive(folder, 2, ASKED)
    drive(folder, 2, EXTENDED, point=point, step=step, after=newest)
    # Who goes on with it says nothing of the epochs: it was asked for three.
    last = folder.newest_request().config.model_dump(include=set(EXTENDED))
    found = drive(folder, 3, last)
    assert found == {"digest": undisturbed[1], "resumed_from": newest}
    assert folder.record().config.epochs == 1


@pytest.mark.promise("schedule-span")
def test_the_schedule_spans_what_was_asked_at_first_and_then_holds_its_last_rate(
    undisturbed: tuple[RunFolder, str],
) -> None:
    rates = learning_rates(undisturbed[0])
    assert list(rates) == list(range(1, 16))
    # One cycle: up, and down to next to nothing.
    assert max(rates.values()) == pytest.approx(0.02, rel=0.1)
    assert rates[5] < 1e-6
    assert {rates[step] for step in range(6, 16)} == {rates[5]}


@pytest.mark.promise("extend-and-fork")
@pytest.mark.parametrize("at", [4, 8], ids=["within the schedule", "in the extension"])
def test_a_fork_that_is_killed_ends_as_its_origin(
    undisturbed: tuple[RunFolder, str], at: int, tmp_path: Path
) -> None:
    origin, digest = undisturbed
    (chosen,) = [one for one in origin.checkpoints() if one.manifest.step == at]
    fork = fork_checkpoint(origin, chosen, f"fork-at-{at}")
    last = fork.newest_request().config.model_dump(include=set(EXTENDED))
    drive(fork, 2, last, point="in_step", step=at + 3, rank=1, after=at + 2)
    found = drive(fork, 3, last)
    assert found == {"digest": digest, "resumed_from": at + 2}
    # What the origin did after that step is not the fork's.
    of_fork = {one.name for one in fork.checkpoints()}
    assert of_fork & {one.name for one in origin.checkpoints()} == {chosen.name}
    assert CheckpointName(15, chosen.name.attempt + 3) in of_fork
