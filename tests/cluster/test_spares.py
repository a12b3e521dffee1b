"""When a pool starts spares, on a real Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path

import psutil
import pytest
import ray
from ray.exceptions import OutOfMemoryError

from tests.waiting import wait_for
from train_core import TrainConfig
from train_core.cluster.resources import available_memory_bytes
from train_core.cluster.slots import Layout, Slots
from train_core.cluster.spares import SpareKeeper, SpareRules
from train_core.timing import TIMING

pytestmark = [pytest.mark.usefixtures("process_ray"), pytest.mark.timeout(180)]
CONFIG = TrainConfig(num_workers=1, cpus_per_worker=0.25, gpus_per_worker=0)
HERE = "tests.cluster.functions"
AT_ONCE = replace(TIMING.cluster, spare_after_s=0)


class OfGiants(Slots):
    """Each worker takes more memory than a machine has."""

    def memory_bytes(self) -> list[int]:
        return [2**60]


class OutOfMemory(Slots):
    """Its last spare was ended by Ray's memory monitor."""

    def dead_spares(self) -> list[tuple[str, Exception]]:
        died = super().dead_spares()
        if self.spares:
            return died
        (node,) = set(self.nodes().values())
        return [*died, (node, OutOfMemoryError("1 worker(s) were killed"))]


@pytest.fixture(scope="module")
def with_a_worker(process_ray: None) -> Iterator[Slots]:
    """Slots whose worker all tests use."""
    found = Slots.start(Layout.of(CONFIG), [HERE])
    assert found.is_placed(60)
    ray.get(found.workers[0].run.remote(f"{HERE}:pid", ()), timeout=60)
    yield found
    found.end()


@pytest.fixture
def started(with_a_worker: Slots) -> Iterator[Callable[[type[Slots]], Slots]]:
    """Slots of a kind, with spares of their own beside the one worker."""
    found: list[Slots] = []

    def start(kind: type[Slots]) -> Slots:
        own = {field.name: getattr(with_a_worker, field.name) for field in fields(Slots)}
        found.append(kind(**own | {"spares": []}))
        return found[-1]

    yield start
    for slots in found:
        slots.end_spares()


def wanted(mark: Path, number: int | None = 1, left_s: float | None = None) -> SpareRules:
    return SpareRules(number, f"{HERE}:note_pid", (str(mark),), lambda: left_s)


@pytest.mark.parametrize(
    ("kind", "number", "left_s", "why_not"),
    [
        (Slots, None, None, ""),
        (Slots, None, 61, ""),
        (OfGiants, 1, None, ""),
        (Slots, 0, None, "none was wanted"),
        (OfGiants, None, None, "it would leave 0.0 GiB of memory, less than 2"),
        (Slots, None, 59, "the training ends in 59 s"),
        (Slots, 1, 59, ""),
        (OutOfMemory, 1, None, "one was ended as there was no memory left"),
    ],
)
def test_a_spare_is_started_or_it_is_said_why_not(
    started: Callable[[type[Slots]], Slots],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    kind: type[Slots],
    number: int | None,
    left_s: float | None,
    why_not: str,
) -> None:
    slots, keeper = started(kind), SpareKeeper(AT_ONCE)
    keeper.begin(has_lost_worker=False)
    asked = wanted(tmp_path / "spare", number, left_s)
    with caplog.at_level("INFO", "train_core.driver"):
        keeper.keep(slots, asked)
        keeper.keep(slots, asked)
    assert len(slots.spares) == (not why_not)
    said = [line for line in caplog.messages if "spare" in line]
    if number == 0:
        assert said == []
    else:
        (line,) = said
        assert (why_not or "a spare is started") in line


def test_a_spare_is_started_after_a_while_or_at_once_after_a_loss(
    started: Callable[[type[Slots]], Slots], tmp_path: Path
) -> None:
    slots, keeper = started(Slots), SpareKeeper(TIMING.cluster)
    asked = wanted(tmp_path / "spare")
    keeper.begin(has_lost_worker=False)
    keeper.keep(slots, asked)
    assert slots.spares == []
    keeper.begin(has_lost_worker=True)
    keeper.keep(slots, asked)
    assert len(slots.spares) == 1


def test_one_that_dies_while_it_waits_is_followed_by_another_one(
    started: Callable[[type[Slots]], Slots], tmp_path: Path
) -> None:
    slots, keeper = started(Slots), SpareKeeper(AT_ONCE)
    mark = tmp_path / "spare"
    keeper.begin(has_lost_worker=False)
    keeper.keep(slots, wanted(mark))
    wait_for(slots.spares[0].is_ready, 60)
    first = slots.spares[0]
    psutil.Process(int(mark.read_text())).kill()

    def has_another() -> bool:
        keeper.keep(slots, wanted(mark))
        return slots.spares[0] is not first

    wait_for(has_another, 60)


def test_the_memory_that_is_left_is_less_than_the_machine_has() -> None:
    assert 0 < available_memory_bytes() <= psutil.virtual_memory().total
