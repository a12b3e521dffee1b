"""What is kept of an attempt that broke, and what of it counts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from train_core.rank.checkpoint.journal_buffer import Uncommitted
from train_core.rank.checkpoint.kept import Kept, Offer, kept_state
from train_core.rank.distributed.group import Group
from train_core.storage.records.journal import Entry
from train_core.storage.records.names import CheckpointName

ALONE = Group(0, 1, torch.device("cpu"))
SECOND, FOURTH = CheckpointName(2, 1), CheckpointName(4, 1)


def entry(step: int) -> Entry:
    return Entry(step=step, time=0, metrics={})


def five_steps() -> Uncommitted:
    """Five entries since the beginning, of which two checkpoints cover two and four."""
    found = Uncommitted()
    for step in range(1, 6):
        found.entries.append(entry(step))
        if step % 2 == 0:
            found.cover(CheckpointName(step, 1))
    return found


@pytest.mark.parametrize(
    ("commit", "steps"),
    [(None, [1, 2, 3, 4, 5]), (SECOND, [3, 4, 5]), (FOURTH, [5])],
)
def test_the_entries_after_each_commit_are_known(
    commit: CheckpointName | None, steps: list[int]
) -> None:
    after = five_steps().after(commit)
    assert after is not None
    assert [one.step for one in after] == steps


def test_the_entries_after_anothers_commit_are_not_known() -> None:
    assert five_steps().after(CheckpointName(4, 2)) is None


def test_what_a_commit_covers_is_dropped_once() -> None:
    uncommitted = five_steps()
    for _ in range(2):
        uncommitted.commit(SECOND)
        assert [one.step for one in uncommitted.entries] == [3, 4, 5]
    assert uncommitted.after(None) is None
    assert uncommitted.after(SECOND) == [entry(3), entry(4), entry(5)]
    assert uncommitted.after(FOURTH) == [entry(5)]


def kept(step: int = 5, due: CheckpointName | None = None, **more: Any) -> Kept:
    state = {
        "model": {"weight": torch.arange(6.0).reshape(2, 3).t()},
        "optimizer": {"state": {"weight": {"step": torch.tensor(5.0)}}},
        "progress": {"step": step, "epoch": 1, "elapsed_s": 1.5},
        "workload": {"own": torch.ones(2)},
    }
    return Kept(state | more, 0, five_steps(), due)


def test_an_offer_is_of_what_all_ranks_hold_alike() -> None:
    same = kept(
        workload={"own": torch.zeros(2)}, progress={"step": 5, "epoch": 1, "elapsed_s": 9.0}
    )
    assert same.offer(FOURTH) == kept().offer(FOURTH) == kept().offer(None)
    other = kept(model={"weight": torch.arange(6.0).reshape(2, 3).t() + 1e-7})
    offers = [one.offer(FOURTH) for one in (kept(), other)]
    assert all(isinstance(offer, Offer) and offer.step == 5 for offer in offers)
    assert offers[0] != offers[1]


@pytest.mark.parametrize(
    ("newest", "is_offered"),
    [(FOURTH, True), (SECOND, False), (None, False), (CheckpointName(5, 2), False)],
)
def test_a_checkpoint_with_a_validation_must_be_there(
    newest: CheckpointName | None, *, is_offered: bool
) -> None:
    assert (kept(due=FOURTH).offer(newest) is not None) == is_offered
    # At its own step it is taken again.
    assert kept(step=4, due=FOURTH).offer(SECOND) is not None


@dataclass(frozen=True)
class BesideAnother(Group):
    """A group in which another rank makes an offer, too."""

    offer: Offer | None = None

    def gather(self, value: Any) -> list[Any]:
        return [value, self.offer]


def test_the_greatest_step_counts_if_all_that_have_it_have_the_same_bits() -> None:
    own = kept().offer(FOURTH)
    assert own is not None
    for other in (own, None, replace(own, step=4, digest="another")):
        found = kept_state(kept(), FOURTH, BesideAnother(0, 1, ALONE.device, other))
        assert found is not None
        assert found.state["progress"]["step"] == 5
    other = replace(own, digest="another")
    assert kept_state(kept(), FOURTH, BesideAnother(0, 1, ALONE.device, other)) is None


def test_a_state_comes_back_as_it_was() -> None:
    given = kept()
    found = kept_state(given, SECOND, ALONE)
    assert found is not None
    weight = found.state["model"]["weight"]
    assert weight.tolist() == given.state["model"]["weight"].tolist()
    assert weight.data_ptr() != given.state["model"]["weight"].data_ptr()
    assert found.state["progress"] == given.state["progress"]
    assert [one.step for one in found.entries] == [3, 4, 5]
    assert kept_state(None, SECOND, ALONE) is None
