"""The evidence of a gate as a reviewer sees it: on the page of a run, and above the form."""

from __future__ import annotations

import pytest

from evertrain_tasks.report.gate_table import evidence_markdown
from tests.champion.samples import decision, version
from train_core.policy.champion.gate_decision import Evidence, Improvement, Outcome, Score
from train_core.results import GateResult, McNemar

NEW = Score(0.95, {"cat": 0.9, "dog": None}, row_ms=0.25, batch_ms=2.0, size_bytes=1000)
OLD = Score(0.9, {"cat": 0.8, "dog": 0.7}, row_ms=0.5, batch_ms=4.0, size_bytes=2000)


def page(**changes: object) -> str:
    made = decision(version(2, "new"), 1, outcome=Outcome.ASK, **changes)
    return evidence_markdown(GateResult(decision=made, decision_uri="/runs/new/decisions/x"))


@pytest.mark.promise("gate-evidence")
def test_the_evidence_has_both_models_side_by_side_and_how_they_were_compared() -> None:
    test = McNemar(only_challenger_right=9, only_champion_right=1, p_value=0.0215)
    comparison = decision().comparison.model_copy(
        update={"num_resamples": 2000, "mcnemar": test, "data_digest": "0123456789abcdef"}
    )
    evidence = Evidence(NEW, OLD, Improvement(0.05, 0.02, 0.08), has_changed_data=True)
    shown = page(comparison=comparison, evidence=evidence, reasons=("ask a person", "it is better"))
    for line in (
        "**models:/Digits/2 waits for approval: ask a person; it is better**",
        "- ask a person\n- it is better",
        "|  | challenger | champion |",
        "| accuracy | 0.9500 | 0.9000 |",
        "| recall of cat | 0.9000 | 0.8000 |",
        "| ms for a row | 0.2500 | 0.5000 |",
        "Both were scored on the 40 rows of the test split (0123456789ab).",
        "The champion was chosen on other rows.",
        "Improvement: +0.05, 95% interval [+0.02, +0.08] (paired bootstrap, 2000 resamples).",
        "only the challenger is right on 9 rows, only the champion on 1; p = 0.0215.",
        "Champion: `models:/Digits/1`, `step-00000001-a0001` of run `before`.",
    ):
        assert line in shown


def test_without_a_champion_there_is_one_column_and_nothing_is_compared() -> None:
    made = decision(evidence=Evidence(NEW))
    shown = evidence_markdown(GateResult(decision=made, decision_uri=""))
    assert "|  | challenger |\n" in shown
    assert "It was scored on the 40 rows" in shown
    for word in ("champion |", "Improvement", "McNemar"):
        assert word not in shown
