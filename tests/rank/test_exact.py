"""A training that is killed and resumed, on any number of workers, ends with the same bits.

Every interruption is a SIGKILL that a real rank of a real gloo group gives itself at a scheduled
point. `make exact` runs the whole table, `make test-all` and CI each tenth row of it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import cache
from itertools import cycle, product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.marks import FULL_TABLE, SLOW
from tests.ranks.processes import train

# 150 samples make 5 steps an epoch, the last of 22 samples.
CONFIG: dict[str, Any] = {
    "workload": "tests.rank.tiny:Tiny",
    "epochs": 2,
    "batch_size": 32,
    "accumulation_steps": 2,
    "num_shards": 4,
    "clip_norm": 1.0,
    "eval_batch_size": 16,
    "checkpoint_every_steps": 2,
    "checkpoint_backpressure": "wait",
    "monitor": "validation/loss",
    "monitor_order": "min",
    "early_stopping_patience": 5,
}

# Stops early, after the second of three epochs: no loss is so much better than the first.
STOPS_EARLY = {"epochs": 3, "early_stopping_patience": 1, "early_stopping_min_delta": 10.0}
# Every shard of four has two batches to validate, so that a rank can die between them.
TABLE = CONFIG | {"eval_batch_size": 8}
# Dropout, augmentation, BatchNorm, a schedule, an average by hook, accumulation and clipping are
# in both; an optimizer is AdamW or SGD, and only a dataset with an index has fetching processes.
EVERYTHING: dict[str, dict[str, Any]] = {
    "all-adamw-indexed": TABLE
    | STOPS_EARLY
    | {"precision": "bf16", "settings": {"sample_by_sample": True}, "data_workers": 1},
    "all-momentum-stream": TABLE
    | STOPS_EARLY
    | {
        "precision": "bf16",
        "settings": {"momentum": 0.9},
        "workload": "tests.rank.tiny:StreamingTiny",
    },
}
NOTHING: dict[str, Any] = {
    "one_cycle": False,
    "batch_norm": False,
    "dropout": 0,
    "augmentation": 0,
    "averages": False,
}
PLAIN = TABLE | {
    "accumulation_steps": 1,
    "clip_norm": 0,
    "early_stopping_patience": 0,
    "settings": NOTHING,
}
ONE_BY_ONE: dict[str, dict[str, Any]] = {
    "adamw": PLAIN,
    "sgd": PLAIN | {"settings": NOTHING | {"momentum": 0}},
    "momentum": PLAIN | {"settings": NOTHING | {"momentum": 0.9}},
    "dropout": PLAIN | {"settings": NOTHING | {"dropout": 0.2}},
    "augmentation": PLAIN | {"settings": NOTHING | {"augmentation": 0.1}},
    "batch-norm": PLAIN | {"settings": NOTHING | {"batch_norm": True}},
    "schedule": PLAIN | {"settings": NOTHING | {"one_cycle": True}},
    "average": PLAIN | {"settings": NOTHING | {"averages": True}},
    "accumulation": PLAIN | {"accumulation_steps": 2},
    "clipping": PLAIN | {"clip_norm": 1.0},
    "bf16": PLAIN | {"precision": "bf16"},
    "data-workers": PLAIN | {"settings": NOTHING | {"sample_by_sample": True}, "data_workers": 2},
    "stream": PLAIN | {"workload": "tests.rank.tiny:StreamingTiny"},
    "early-stopping": PLAIN | STOPS_EARLY,
    "drop-last": PLAIN | {"drop_last": True, "settings": NOTHING | {"num_train": 170}},
}
DIGITS = TABLE | {"workload": "train_core.workloads.digits:Digits", "batch_size": 256}
OTHERS: dict[str, dict[str, Any]] = {
    # Steps of 64, the last of 44: BatchNorm needs two samples in every micro-batch.
    "eight-shards": EVERYTHING["all-momentum-stream"]
    | {"num_shards": 8, "batch_size": 64, "settings": {"momentum": 0.9, "num_train": 300}},
    "noise": TABLE | {"workload": "tests.rank.tiny:Noisy"},
    "channels-last": DIGITS | {"channels_last": True},
    "compile": TABLE | {"compile": True},
}
CONFIGS = EVERYTHING | ONE_BY_ONE | OTHERS

# Where, of which step, and the newest checkpoint then: one is due after every second step and at
# the end of an epoch.
POINTS = {
    "first step": ("in_step", 0, 0),
    "mid-epoch": ("before_step", 3, 2),
    "snapshot": ("in_snapshot", 4, 2),
    "validation": ("in_validation", 5, 4),
    "half a file": ("in_file", 6, 5),
    "between files": ("between_files", 8, 6),
    "before manifest": ("before_manifest", 6, 5),
    "after manifest": ("after_manifest", 6, 6),
    "mid-accumulation": ("in_step", 7, 6),
    "last step": ("before_step", 9, 8),
    "last validation": ("in_validation", 10, 8),
    "last file": ("in_file", 10, 8),
    "last manifest": ("before_manifest", 10, 8),
}
# What only rank 0 does.
OF_RANK_0 = {"before manifest", "after manifest", "last manifest"}


class Killed(NamedTuple):
    """An attempt on so many workers, of which one kills itself at a point."""

    workers: int
    point: str
    rank: int = 0


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The digest of the run that nobody touched, on one worker, by its configuration's name."""

    @cache
    def digest(name: str) -> str:
        storage = str(tmp_path_factory.mktemp("undisturbed"))
        found = train(storage, "run", attempt=1, workers=1, config=CONFIGS[name])
        assert found["resumed_from"] == 0
        return str(found["digest"])

    return digest


def some_of_the_table() -> list[Any]:
    """Everything at every point, the numbers of workers and what is trained take turns; a chain."""
    both = indexed, stream = tuple(EVERYTHING)
    rows: list[Any] = [
        (
            both[turn // 2 % 2],
            [Killed(before, point, rank_for(point, before, turn // 2))],
            (before + turn // 2 % 3) % 4 + 1,
        )
        for turn, (point, before) in enumerate(zip(POINTS, cycle((3, 2, 1, 4)), strict=False))
    ]
    return [
        *rows,
        (stream, [], 4),
        (indexed, CHAIN, 4),
        ("eight-shards", [Killed(5, "mid-accumulation", rank=4)], 6),
    ]


def more_of_the_table() -> list[Any]:
    """What the rows for `make test` do not have, one row for each."""
    indexed, _ = EVERYTHING
    return [
        (indexed, [], 3),
        ("noise", [], 3),
        # The second kill soon after the first resume.
        (indexed, [Killed(2, "before manifest"), Killed(1, "half a file")], 2),
        # Has no tensor but the model's: the other ranks have nothing to store.
        ("sgd", [Killed(4, "mid-epoch", rank=1)], 2),
    ]


# From 4 workers to 2, 3 and 1, each time in the middle of an epoch.
CHAIN = [
    Killed(4, "mid-epoch", rank=1),
    Killed(2, "snapshot", rank=1),
    Killed(3, "between files", rank=2),
    Killed(1, "last step"),
]
NO_CHAIN = ("sgd", "compile", "eight-shards")


def rest_of_the_table() -> list[Any]:
    """Everything at every point, on any workers before and after; every feature at every point."""
    workers = list(product((1, 2, 3, 4), repeat=2))
    names = cycle(EVERYTHING)
    rows: list[Any] = [
        (next(names), [Killed(before, point, rank_for(point, before, after))], after)
        for point, (before, after) in product(POINTS, workers)
    ]
    # The numbers of workers take turns: 16 pairs meet 13 points, so that none meets one pair only.
    pairs = cycle(workers)
    for name, point in product(ONE_BY_ONE, POINTS):
        before, after = next(pairs)
        # Plain SGD has no state: only rank 0 has a file to store.
        rank = 0 if name == "sgd" else rank_for(point, before, after)
        rows.append((name, [Killed(before, point, rank)], after))
    rows += [(name, [], count) for name, count in product((*EVERYTHING, "noise"), (2, 3, 4))]
    rows += [(name, CHAIN, 4) for name in CONFIGS if name not in NO_CHAIN]
    rows += [("eight-shards", [], count) for count in (3, 5, 6, 7, 8)]
    rows += [
        ("eight-shards", [Killed(6, point, rank_for(point, 6, 5))], 5)
        for point in POINTS
        if "validation" not in point
    ]
    rows += [("compile", [Killed(2, "mid-accumulation")], 1)]
    return rows


def rank_for(point: str, workers: int, turn: int) -> int:
    """The rank that dies: the last one and the first one take turns."""
    return 0 if point in OF_RANK_0 or turn % 2 else workers - 1


def spelled(row: Any) -> str:
    name, kills, workers = row
    deaths = [f"{k.point.replace(' ', '-')}-of-rank-{k.rank}" for k in kills]
    return f"{name}:{'-'.join(str(n) for n in [*(k.workers for k in kills), workers])}:" + (
        ",".join(deaths) or "undisturbed"
    )


def mark_of(number: int) -> pytest.MarkDecorator:
    """Of the rows that `make test` leaves out, each tenth is run by `make test-all`."""
    return FULL_TABLE if number % 10 else SLOW


SOME, MORE = some_of_the_table(), more_of_the_table()
REST = [row for row in rest_of_the_table() if row not in [*SOME, *MORE]]
ROWS = [
    *(
        pytest.param(*row, id=spelled(row), marks=SLOW if number % 2 else ())
        for number, row in enumerate(SOME)
    ),
    *(pytest.param(*row, id=spelled(row), marks=SLOW) for row in MORE),
    *(
        pytest.param(*row, id=spelled(row), marks=mark_of(number))
        for number, row in enumerate(REST)
    ),
]


@pytest.mark.promise("exact-training", "streams")
@pytest.mark.parametrize(("name", "kills", "workers"), ROWS)
def test_killed_run_ends_as_if_undisturbed(
    undisturbed: Callable[[str], str], name: str, kills: list[Killed], workers: int, tmp_path: Path
) -> None:
    config, newest = CONFIGS[name], 0
    for attempt, (number, at, rank) in enumerate(kills, start=1):
        point, step, newest = POINTS[at]
        fault = {"point": point, "step": step, "rank": rank, "after": newest}
        train(str(tmp_path), "run", attempt=attempt, workers=number, config=config, **fault)
    last = train(str(tmp_path), "run", attempt=len(kills) + 1, workers=workers, config=config)
    assert last == {"digest": undisturbed(name), "resumed_from": newest}


def test_three_shards_on_two_workers(tmp_path: Path) -> None:
    config = CONFIG | {"num_shards": 3, "epochs": 1, "batch_size": 64, "drop_last": True}
    alone = train(str(tmp_path), "alone", attempt=1, workers=1, config=config)
    assert train(str(tmp_path), "together", attempt=1, workers=2, config=config) == alone


ROWS_ON_S3 = [
    pytest.param([Killed(3, "mid-epoch"), Killed(2, "before manifest")], 4, id="twice"),
    pytest.param(CHAIN, 4, id="chain", marks=SLOW),
    *(
        pytest.param([Killed(2, point, rank_for(point, 2, turn))], 3, id=point, marks=FULL_TABLE)
        for turn, point in enumerate(POINTS)
    ),
]


@pytest.mark.s3
@pytest.mark.parametrize(("kills", "workers"), ROWS_ON_S3)
def test_a_run_on_s3_ends_alike(
    undisturbed: Callable[[str], str],
    kills: list[Killed],
    workers: int,
    object_store: str,
    tmp_path: Path,
) -> None:
    name = "all-adamw-indexed"
    at: dict[str, Any] = {"config": CONFIGS[name], "home": str(tmp_path)}
    storage, newest = f"{object_store}/{uuid.uuid4().hex}", 0
    for attempt, (number, named, rank) in enumerate(kills, start=1):
        point, step, newest = POINTS[named]
        how: dict[str, Any] = {"point": point, "step": step, "rank": rank, "after": newest}
        assert train(storage, "run", attempt=attempt, workers=number, **at, **how) is None
    found = train(storage, "run", attempt=len(kills) + 1, workers=workers, **at)
    assert found == {"digest": undisturbed(name), "resumed_from": newest}
