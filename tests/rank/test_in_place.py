"""A rank is killed, and the others go on from what they have, in the same processes.

The ranks are processes that live on from attempt to attempt; `tests/driver/attempts` has
those of a pool. `make exact` runs the whole table.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from tests.marks import FULL_TABLE, SLOW, slow
from tests.rank.alone import create, run
from tests.rank.digests import digest_of_training
from tests.rank.test_exact import CONFIGS as OF_THE_TABLE
from tests.rank.tiny import Tiny, TinySettings
from tests.ranks import in_place
from tests.ranks.in_place import LastingProcesses
from train_core import TrainConfig
from train_core.config import LOCAL
from train_core.datasets.protocols import Dataset, Split, Stream
from train_core.driver.attempts.supervisor import Attempt, AttemptOutcome, Supervisor
from train_core.policy.restarts import Ended, RestartRules
from train_core.rank.data.recorded_workload import with_monitor
from train_core.storage.objects.store import Store
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import begin_attempt
from train_core.timing import Timing

# 150 samples make 5 steps an epoch, the last of 22 samples.
ASKED: dict[str, Any] = {
    "workload": "tests.rank.tiny:Tiny",
    "epochs": 2,
    "batch_size": 32,
    "accumulation_steps": 2,
    "num_shards": 4,
    "clip_norm": 1.0,
    "eval_batch_size": 8,
    "checkpoint_every_steps": 2,
    "checkpoint_backpressure": "wait",
    "ray_address": LOCAL,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "tiny": {},
    "bound": {
        "workload": f"{__name__}:Bound",
        "settings": {"sample_by_sample": True},
    },
    **OF_THE_TABLE,
}
"""What is trained, by its name."""
POINTS = {
    "first step": ("before_step", 0),
    "between steps": ("before_step", 3),
    "in the passes": ("in_step", 3),
    "before the update": ("before_update", 3),
    "after the update": ("after_update", 3),
    "after the step": ("after_step", 4),
    "snapshot": ("in_snapshot", 4),
    "validation": ("in_validation", 5),
    "last step": ("before_step", 9),
}
"""Where a rank dies, and the number of steps done then."""
QUICK = {
    *((3, point) for point in ("after the update", "snapshot", "validation")),
    (2, "last step"),
}
"""On how many workers at which point `make test` kills one."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """The digest of the training that one process did by itself."""

    @cache
    def digest(name: str) -> str:
        folder = RunFolder(str(tmp_path_factory.mktemp("alone")), "alone")
        run(folder, **ASKED | CONFIGS[name])
        return digest_of_training(folder)

    return digest


class Trained:
    """A run, trained to its end in as many attempts as it took."""

    def __init__(
        self,
        scratch: Path,
        kills: Kills,
        max_restarts: int = 20,
        launcher: type[LastingProcesses] = LastingProcesses,
        **config: Any,
    ) -> None:
        self.folder = RunFolder(str(scratch), "run")
        self.folder.store = AwayStore(self.folder.url)
        asked = with_monitor(TrainConfig(**ASKED | config))
        create(self.folder, asked)
        in_place.schedule(scratch, kills)
        held = begin_attempt(self.folder)
        # Several kills may come before a step or a commit.
        timing = Timing(restarts=RestartRules(max_restarts, pause_s=0.01))
        processes = launcher(scratch / "ranks.log")
        try:
            Supervisor(self.folder, held, timing).train(asked, processes)
        finally:
            processes.close()
            held.release()
        self.digest = digest_of_training(self.folder)
        self.pids, self.unwilling = processes.pids, processes.unwilling
        self.steps_lost = steps_lost(scratch)


def steps_lost(scratch: Path) -> list[int]:
    """How many steps were done again after each attempt that had done some, but the last."""
    done: dict[int, list[int]] = {}
    for attempt, _, step, _ in in_place.steps_done(scratch):
        done.setdefault(attempt, []).append(step)
    of_each = [done[attempt] for attempt in sorted(done)]
    return [max(was) - min(now) + 1 for was, now in pairwise(of_each)]


Kills = dict[int, list[dict[str, Any]]]
"""Of each attempt those who die."""


def kill(rank: int, point: str, step: int, after: int = 0) -> dict[str, Any]:
    return {"rank": rank, "point": point, "step": step, "after": after}


Train = Callable[..., Trained]


@pytest.fixture
def trained(undisturbed: Callable[[str], str], tmp_path: Path) -> Train:
    """Trains with these kills, and compares the end with that of the undisturbed training.

    `lost`: how many steps are done again after each attempt; None: whatever it is.
    """

    def train(
        kills: Kills, lost: Sequence[int] | None = (0,), name: str = "tiny", **more: Any
    ) -> Trained:
        found = Trained(tmp_path, kills, **CONFIGS[name], **more)
        assert found.digest == undisturbed(name)
        assert lost is None or found.steps_lost == list(lost)
        return found

    return train


def rows() -> list[Any]:
    """A rank at each point, on two, three and four workers, and every feature at every point.

    `make test` has four of the points on three workers and the last one on two, where one is left.
    """
    found = [
        pytest.param(
            "tiny",
            workers,
            point,
            id=f"{workers}-{point}".replace(" ", "-"),
            marks=() if (workers, point) in QUICK else SLOW,
        )
        for workers, point in product((2, 3, 4), POINTS)
    ]
    found += [
        pytest.param(
            name, workers, point, id=f"{workers}-{point}-{name}".replace(" ", "-"), marks=mark
        )
        for workers, point, name, mark in (
            (3, "between steps", "all-momentum-stream", ()),
            (2, "after the step", "all-adamw-indexed", SLOW),
            (3, "in the passes", "bound", SLOW),
        )
    ]
    # The numbers of workers take turns.
    found += [
        pytest.param(name, 2 + (number + turn) % 3, point, marks=FULL_TABLE)
        for number, name in enumerate(OF_THE_TABLE)
        for turn, point in enumerate(POINTS)
        # In its first step a survivor compiles for longer than it is waited for.
        if (name, point) != ("compile", "first step")
    ]
    return found


@pytest.mark.promise("exact-training", "worker-dies")
@pytest.mark.parametrize(("name", "workers", "point"), rows())
def test_killed_in_place(trained: Train, name: str, workers: int, point: str) -> None:
    at, step = POINTS[point]
    dead = workers - 1 if step % 2 else 0
    found = trained({1: [kill(dead, at, step)]}, None, name, num_workers=workers)
    assert not any(found.steps_lost)
    first, second = found.pids
    assert [was == now for was, now in zip(first, second, strict=True)] == [
        rank != dead for rank in range(workers)
    ]


@pytest.mark.parametrize(
    ("kills", "lost"),
    [
        # Rank 0 commits, and the others have what it had not committed.
        pytest.param({1: [kill(0, "in_file", 2)]}, [0], id="upload", marks=SLOW),
        pytest.param({1: [kill(0, "before_manifest", 4, 2)]}, [0], id="before the commit"),
        pytest.param(
            {1: [kill(0, "after_manifest", 4, 2)]}, [0], id="after the commit", marks=SLOW
        ),
        pytest.param({1: [kill(1, "in_file", 4, 2)]}, [0], id="a share", marks=SLOW),
        pytest.param(
            {1: [kill(1, "in_validation", 10, 8)]}, [], id="last validation", marks=SLOW
        ),
        pytest.param(
            {1: [kill(0, "before_step", 3)], 2: [kill(1, "before_update", 4)],
             3: [kill(2, "after_step", 7)]},
            [0, 0, 0],
            id="several in a row",
        ),
        pytest.param(
            {1: [kill(0, "before_step", 3), kill(2, "before_step", 3)]}, [0], id="two", marks=SLOW
        ),
        pytest.param(
            {1: [kill(0, "before_step", 3)], 2: [kill(0, "in_restore", 0)]},
            [0],
            id="the one that joins",
            marks=SLOW,
        ),
        pytest.param(
            {1: [kill(0, "before_step", 3)], 2: [kill(0, "before_joining", 0)]},
            [0],
            id="one that has not joined",
            marks=SLOW,
        ),
        pytest.param(
            {1: [kill(0, "before_step", 3)], 2: [kill(1, "in_restore", 0)]},
            [0],
            id="a survivor that begins again",
        ),
    ],
)  # fmt: skip
def test_three_ranks_lose_some(trained: Train, kills: Kills, lost: list[int]) -> None:
    trained(kills, lost, num_workers=3)


@pytest.mark.promise("three-restarts")
def test_attempts_that_come_further_without_a_commit_are_followed_by_others(trained: Train) -> None:
    kills = {number: [kill(number % 2, "before_step", number + 1)] for number in (1, 2, 3)}
    more = {"num_workers": 2, "checkpoint_every_steps": 10}
    found = trained(kills, [0, 0, 0], max_restarts=1, **more)
    assert min(one.name.attempt for one in found.folder.checkpoints()) == 4


@pytest.mark.parametrize(
    "step", [pytest.param(5, id="epoch"), pytest.param(10, id="last", marks=SLOW)]
)
def test_a_checkpoint_with_a_validation_is_taken_again(trained: Train, step: int) -> None:
    found = trained({1: [kill(0, "before_manifest", step)]}, None, num_workers=2)
    commits = found.folder.checkpoints()
    assert {one.step for one in commits if one.manifest.validated} == {5, 10}


@SLOW
def test_a_state_that_was_altered_in_one_memory_is_noticed(trained: Train) -> None:
    kills = {1: [kill(2, "before_step", 3, 2), kill(1, "alter", 3)]}
    trained(kills, [1], num_workers=3)


@pytest.mark.parametrize("point", ["shared", slow("in_file")])
def test_a_commit_in_flight_is_finished_if_all_shares_are_stored(
    trained: Train, point: str
) -> None:
    kills = {1: [kill(0, "slow_before_manifest", 4), kill(1, point, 4, 2)]}
    found = trained(kills, num_workers=2, keep_last=9)
    assert found.unwilling == []
    attempts = {one.step: one.name.attempt for one in found.folder.checkpoints()}
    assert attempts[2] == 1
    # Else the next one takes it, if nobody is beyond that step.
    assert (attempts.get(4) == 1) == (point == "shared")


@SLOW
def test_a_survivor_whose_storage_hangs_is_replaced(trained: Train) -> None:
    kills = {1: [kill(0, "stuck_in_file", 4), kill(1, "before_step", 4)]}
    found = trained(kills, num_workers=3)
    before, after = found.pids
    assert [was == now for was, now in zip(before, after, strict=True)] == [False, False, True]


def test_the_only_survivor_has_time_to_end_what_it_stores(trained: Train) -> None:
    # All its files would take longer than it has; the first one does not.
    kills = {1: [kill(0, "slow_in_file", 4), kill(1, "before_step", 4)]}
    found = trained(kills, num_workers=2)
    assert found.pids[0][0] == found.pids[1][0]


class AwayStore(Store):
    """Cannot be reached for a second from the moment on that a test says."""

    until = 0.0
    num_refused = 0

    def go_away(self) -> None:
        self.until = time.monotonic() + 1

    def _run(self, action: str, key: str, operation: Callable[[float], Any], **more: Any) -> Any:
        def once(left_s: float) -> Any:
            if time.monotonic() < self.until:
                self.num_refused += 1
                raise ConnectionError("no route to the storage")
            return operation(left_s)

        return super()._run(action, key, once, **more)


class LosesTheStorage(LastingProcesses):
    """The driver's storage is away as it takes the next number of the lease."""

    def run(self, attempt: Attempt) -> AttemptOutcome:
        outcome = super().run(attempt)
        if outcome.ended is Ended.LOST:
            assert isinstance(attempt.folder.store, AwayStore)
            attempt.folder.store.go_away()
        return outcome


@SLOW
def test_survivors_wait_for_a_storage_that_is_away_as_the_next_attempt_begins(
    trained: Train,
) -> None:
    kills = {1: [kill(1, "before_step", 3)]}
    found = trained(kills, launcher=LosesTheStorage, num_workers=2)
    assert isinstance(found.folder.store, AwayStore)
    assert found.folder.store.num_refused > 0
    assert found.pids[0][0] == found.pids[1][0]


@SLOW
def test_what_a_module_sets_as_it_is_imported_holds_in_every_attempt(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"workload": "tests.rank.wide:Wide", "num_workers": 2}
    (tmp_path / "alone").mkdir()
    (tmp_path / "killed").mkdir()
    alone = Trained(tmp_path / "alone", {}, **asked)
    found = Trained(tmp_path / "killed", {1: [kill(1, "before_step", 3)]}, **asked)
    assert found.digest == alone.digest


@SLOW
def test_a_survivor_in_a_long_validation_is_told(trained: Train) -> None:
    kills = {1: [kill(0, "in_validation", 5), kill(1, "slow_validation", 5)]}
    found = trained(kills, num_workers=2)
    assert found.unwilling == []


def test_a_survivor_that_does_not_leave_is_replaced(trained: Train) -> None:
    kills = {1: [kill(0, "before_step", 3), kill(1, "stuck", 3)]}
    found = trained(kills, num_workers=3)
    assert found.unwilling == [found.pids[0][1]]
    assert found.pids[1][2] == found.pids[0][2]


@SLOW
@pytest.mark.parametrize("workers", [2, 3])
def test_many_kills_leave_as_many_threads_and_descriptors(
    trained: Train, tmp_path: Path, workers: int
) -> None:
    kills = {number: [kill(0, "before_step", number + 2)] for number in range(1, 8)}
    found = trained(kills, None, num_workers=workers, data_workers=1)
    assert found.unwilling == []
    facts = [f for f in in_place.facts_of_processes(tmp_path) if f["pid"] == found.pids[0][1]]
    assert [one["attempt"] for one in facts] == list(range(1, 8))
    for what in ("threads", "descriptors", "children"):
        assert len({one[what] for one in facts[1:]}) == 1, (what, facts)
    assert facts[-1]["children"] == 0


@pytest.mark.timeout(900)
@FULL_TABLE
def test_a_hundred_kills_leave_as_much_memory(tmp_path: Path) -> None:
    alone = RunFolder(str(tmp_path / "alone"), "alone")
    run(alone, **ASKED | {"epochs": 25})
    (tmp_path / "killed").mkdir()
    kills = {number: [kill(0, "before_step", number + 2)] for number in range(1, 101)}
    found = Trained(tmp_path / "killed", kills, num_workers=2, epochs=25)
    assert found.digest == digest_of_training(alone)
    assert found.unwilling == []
    survivor = found.pids[0][1]
    facts = [f for f in in_place.facts_of_processes(tmp_path / "killed") if f["pid"] == survivor]
    assert [one["attempt"] for one in facts] == list(range(1, 101))
    assert facts[-1]["memory"] <= 1.05 * facts[9]["memory"]
    for what in ("threads", "descriptors", "children"):
        assert facts[-1][what] == facts[9][what], what


class Bound(Tiny):
    """Its data hold it: what `dataset` and a step change counts in a batch."""

    def __init__(self, settings: TinySettings) -> None:
        super().__init__(settings)
        self.scales: dict[str, float] = {}
        self.done = 0

    def dataset(self, split: Split) -> Dataset | Stream:
        self.scales[split] = 1.5
        return super().dataset(split)

    def after_step(self, model: nn.Module, step: int) -> None:
        super().after_step(model, step)
        self.done = step

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.done = state["done"]

    def collate(self, samples: Sequence[Any]) -> Any:
        columns = super().collate(samples)
        columns["x"] = columns["x"] * (self.scales["train"] + self.done / 100)
        return columns


class NotesLoads(Tiny):
    """Each process notes that it loads the training split."""

    def dataset(self, split: Split) -> Dataset | Stream:
        if split == "train":
            with Path(self.settings.scratch, "loads").open("a") as file:
                file.write(f"{os.getpid()}\n")
        return super().dataset(split)


def test_survivors_use_their_data_again(tmp_path: Path) -> None:
    kills = {1: [kill(1, "after_step", 3)], 2: [kill(2, "after_step", 4)]}
    config = {"workload": f"{__name__}:NotesLoads", "settings": {"scratch": str(tmp_path)}}
    Trained(tmp_path, kills, num_workers=3, **config)
    loads = Path(tmp_path, "loads").read_text().split()
    # Three ranks, and the one in the place of each that died.
    assert len(loads) == len(set(loads)) == 5
