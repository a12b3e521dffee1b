"""Situations, optimizers, schedules and settings in any combination, as plain PyTorch has them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.marks import SLOW
from tests.pytorch.case import Case, adamw
from tests.pytorch.engine import differences, engine, oracle
from tests.pytorch.optimizers import OPTIMIZERS, SCHEDULES
from tests.pytorch.situations import SITUATIONS
from tests.pytorch.table import TABLE
from train_core.errors import ConfigError
from train_core.storage.run_folder import RunFolder

DRAWN = "drawn"
FOR_OTHER_MODELS = {"Muon", "SparseAdam"}
BUILT_FOR_SIX_STEPS = {"OneCycleLR"}


def exact(rows: dict[str, Case], *but: str) -> st.SearchStrategy[str]:
    return st.sampled_from(
        [name for name, case in rows.items() if not case.refused and name not in but]
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A situation with an optimizer, a schedule and settings of others."""
    case = SITUATIONS[draw(exact(SITUATIONS, "torch.compile"))]
    optimizer = OPTIMIZERS[draw(exact(OPTIMIZERS, *FOR_OTHER_MODELS))].optimizer
    schedule = SCHEDULES[draw(exact(SCHEDULES, *BUILT_FOR_SIX_STEPS))].schedule
    config: dict[str, Any] = {
        "batch_size": draw(st.integers(12, 18)),
        "accumulation_steps": draw(st.integers(1, 3)),
        "clip_norm": draw(st.sampled_from([0.0, 0.1])),
        "precision": draw(st.sampled_from(["fp32", "bf16"])),
        "drop_last": draw(st.booleans()),
        "seed": draw(st.integers(0, 3)),
    }
    # Some situations are about an optimizer or a dataset of their own.
    return replace(
        case,
        optimizer=optimizer if case.optimizer is adamw else case.optimizer,
        schedule=schedule,
        config=config,
        num_train=case.num_train if case.dataset else draw(st.integers(24, 40)),
    )


def check(case: Case, num_shards: int, cuts: list[int], seen: list[bool]) -> None:
    TABLE[DRAWN] = case
    try:
        expected = _outcome(lambda: oracle(DRAWN, num_shards))
        with TemporaryDirectory() as storage:
            found = _outcome(lambda: engine(DRAWN, num_shards, RunFolder(storage, "run"), *cuts))
        if isinstance(found, ConfigError):
            event(f"refused: {str(found)[:40]}")
        elif isinstance(expected, Exception):
            # PyTorch itself refuses the pair: some schedules follow no group that is added later.
            event(f"PyTorch raises {expected!r:.40}")
            assert repr(found) == repr(expected)
        else:
            assert isinstance(found, dict), found
            assert not differences(found, expected)
            event("exact")
        seen.append(isinstance(found, dict))
    finally:
        del TABLE[DRAWN]


def _outcome(train: Callable[[], dict[str, Any]]) -> dict[str, Any] | Exception:
    try:
        return train()
    except Exception as error:  # noqa: BLE001 (whatever PyTorch raises for a pair of its own)
        return error


@pytest.mark.promise("as-plain-torch")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", [20, pytest.param(400, marks=SLOW)])
def test_combinations_are_as_plain_torch_or_refused(number: int) -> None:
    seen: list[bool] = []
    cuts = st.lists(st.integers(1, 3), max_size=2).map(sorted)
    drawn = given(cases(), st.integers(1, 4), cuts, st.just(seen))
    # The same few in every `make test`; `make test-all` draws others each time.
    settings(max_examples=number, deadline=None, derandomize=number == 20)(drawn(check))()
    # Refusals are for the few, such as one sample alone under BatchNorm.
    assert sum(seen) > len(seen) / 2
