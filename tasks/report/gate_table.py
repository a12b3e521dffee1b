"""The gate's outcome as a table in Markdown: for Prefect's pages, and for who has to approve it."""

from __future__ import annotations

from evertrain_tasks.report.escaped_markdown import code, plain, table
from evertrain_tasks.report.numbers import number
from train_core.policy.champion.gate_decision import Score
from train_core.results import GateResult


def evidence_markdown(result: GateResult) -> str:
    """What was decided, why, and all that was measured of both models."""
    decision, evidence = result.decision, result.decision.evidence
    comparison = decision.comparison
    lines = [f"**{plain(result.summary)}**"]
    if decision.champion:
        champion = decision.champion
        lines.append(
            f"Champion: {code(champion.address)}, {code(champion.checkpoint)} of run "
            f"{code(champion.run)}. Challenger: {code(decision.challenger.checkpoint)} of run "
            f"{code(decision.challenger.run)}."
        )
    if len(decision.reasons) > 1:
        lines.append("\n".join(f"- {plain(reason)}" for reason in decision.reasons))
    scored = "Both were scored" if evidence.champion else "It was scored"
    lines.append(
        f"{scored} on the {comparison.num_rows} rows of the {comparison.split} split"
        + (f" ({comparison.data_digest[:12]})." if comparison.data_digest else ".")
        + (" The champion was chosen on other rows." if evidence.has_changed_data else "")
    )
    heading = ["", "challenger", *(["champion"] if evidence.champion else [])]
    lines.append(table(heading, _rows(decision.metric, evidence.challenger, evidence.champion)))
    if found := evidence.improvement:
        lines.append(
            f"Improvement: {found.value:+.4g}, {comparison.confidence:.0%} interval "
            f"[{found.low:+.4g}, {found.high:+.4g}] "
            f"(paired bootstrap, {comparison.num_resamples} resamples)."
        )
    if test := comparison.mcnemar:
        lines.append(
            f"McNemar's exact test: only the challenger is right on {test.only_challenger_right} "
            f"rows, only the champion on {test.only_champion_right}; p = {test.p_value:.3g}."
        )
    return "\n\n".join(lines)


def _rows(metric: str, challenger: Score, champion: Score | None) -> list[list[str]]:
    def row(name: str, now: float | None, before: float | None) -> list[str]:
        return [name, number(now), *([number(before)] if champion else [])]

    old = champion or Score(metric=None)
    return [
        row(metric, challenger.metric, old.metric),
        *(
            row(f"recall of {name}", value, old.recalls.get(name))
            for name, value in challenger.recalls.items()
        ),
        row("ms for a row", challenger.row_ms, old.row_ms),
        row("ms for a batch", challenger.batch_ms, old.batch_ms),
        row("bytes of weights", challenger.size_bytes, old.size_bytes),
    ]
