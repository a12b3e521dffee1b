"""Versions, decisions and champions that several tests need."""

from __future__ import annotations

from typing import Any

from train_core.policy.champion.gate_decision import Evidence, Outcome, Score
from train_core.policy.champion.gate_options import GateOptions
from train_core.results import Approval, ChampionEntry, Comparison, Decision, ModelVersion

MODEL = "Digits"
WHEN = "2026-01-01T00:00:00+00:00"


def version(number: int = 1, run: str = "run", model: str = MODEL) -> ModelVersion:
    """A version of the registered model."""
    return ModelVersion(
        model=model,
        version=number,
        run=run,
        checkpoint="step-00000001-a0001",
        checkpoint_digest=f"{number:064d}",
        created_at=WHEN,
    )


def decision(challenger: ModelVersion | None = None, champion: int = 0, **changes: Any) -> Decision:
    """A decision on a version in comparison with the champion of that number."""
    made = Decision(
        created_at=WHEN,
        challenger=challenger or version(),
        champion=version(1, "before") if champion else None,
        champion_number=champion,
        metric="accuracy",
        order="max",
        comparison=Comparison(
            split="test", num_rows=40, data_digest="", confidence=0.95, num_resamples=0, seed=0
        ),
        evidence=Evidence(Score(0.9)),
        rules=GateOptions(),
        outcome=Outcome.PROMOTE,
        reasons=("there was no champion before it, and accuracy is 0.9",),
    )
    return made.model_copy(update=changes)


def approval(of: Decision, *, is_approved: bool = True) -> Approval:
    """A person's answer to a decision."""
    return Approval(
        version=of.challenger,
        champion_number=of.champion_number,
        is_approved=is_approved,
        person="ann",
        reason="looked at it",
        created_at=WHEN,
    )


def entry(number: int = 1, of: ModelVersion | None = None, **changes: Any) -> ChampionEntry:
    """The entry that makes a version the champion of that number."""
    made = ChampionEntry(
        number=number,
        version=of or version(),
        created_at=WHEN,
        by="gate",
        decided_by=f"run/decisions/{MODEL}/v00000001-c{number - 1:08d}.json",
        reason="it is better",
    )
    return made.model_copy(update=changes)
