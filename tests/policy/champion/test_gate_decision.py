"""The gate's decision: tables over every rule, and what holds for any evidence."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train_core.policy.champion.gate_decision import Evidence, Improvement, Outcome, Score, decide
from train_core.policy.champion.gate_options import GateOptions
from train_core.policy.checkpoints.selection import Order

PROMOTE, KEEP, ASK = Outcome.PROMOTE, Outcome.KEEP, Outcome.ASK
CHAMPION = Score(0.90, {"cat": 0.8, "dog": 0.9}, row_ms=1.0, batch_ms=8.0, size_bytes=1000)
CHALLENGER = Score(0.95, {"cat": 0.9, "dog": 0.8}, row_ms=1.5, batch_ms=8.0, size_bytes=1500)
BETTER = Evidence(CHALLENGER, CHAMPION, Improvement(0.05, 0.02, 0.08))
FIRST = Evidence(CHALLENGER)


def outcome_of(evidence: Evidence, order: Order = "max", **rules: Any) -> Outcome:
    return decide("accuracy", order, evidence, GateOptions(**rules))[0]


def reasons_of(evidence: Evidence, order: Order = "max", **rules: Any) -> tuple[str, ...]:
    return decide("accuracy", order, evidence, GateOptions(**rules))[1]


@pytest.mark.promise("gate-rules")
def test_a_few_rows_that_differ_show_nothing() -> None:
    few = replace(BETTER, improvement=Improvement(0.05, 0.02, 0.08, 4, 6))
    assert outcome_of(few) == Outcome.KEEP
    (reason,) = reasons_of(few)
    assert reason.endswith(": they differ on 4 rows, and on fewer than 6 that may be chance")
    # Whoever allows a fall does not ask for a proof.
    assert outcome_of(few, min_improvement=-0.1) == Outcome.PROMOTE
    assert outcome_of(replace(few, improvement=Improvement(0.05, 0.02, 0.08, 6, 6))) == (
        Outcome.PROMOTE
    )


def improved(low: float, value: float = 0.05, high: float = 0.08) -> Evidence:
    return replace(BETTER, improvement=Improvement(value, low, high))


@pytest.mark.promise("gate-rules")
@pytest.mark.parametrize(
    ("evidence", "rules", "expected"),
    [
        # The interval has to lie above the bound as a whole, and not on it.
        (BETTER, {}, PROMOTE),
        (improved(1e-9), {}, PROMOTE),
        (improved(0.0), {}, KEEP),
        (improved(-0.01), {}, KEEP),
        (improved(0, 0, 0), {}, KEEP),
        (improved(-0.5, -0.4, -0.3), {}, KEEP),
        (BETTER, {"min_improvement": 0.0199}, PROMOTE),
        (BETTER, {"min_improvement": 0.02}, KEEP),
        (improved(-0.01), {"min_improvement": -0.02}, PROMOTE),
        # Nothing to compare with an interval.
        (replace(BETTER, improvement=None), {}, KEEP),
        # The worst value that any champion may have.
        (BETTER, {"gate_minimum": 0.95}, PROMOTE),
        (BETTER, {"gate_minimum": 0.951}, KEEP),
        (FIRST, {}, PROMOTE),
        (FIRST, {"gate_minimum": 0.95}, PROMOTE),
        (FIRST, {"gate_minimum": 0.951}, KEEP),
        # The first champion has nobody to be better than.
        (FIRST, {"min_improvement": 9.0, "max_recall_drop": 0, "max_size_ratio": 0.1}, PROMOTE),
        # What is not finite is never champion.
        (replace(FIRST, challenger=Score(None)), {}, KEEP),
        (replace(FIRST, challenger=Score(math.nan)), {}, KEEP),
        (replace(BETTER, challenger=Score(math.inf)), {}, KEEP),
        # Recall: the one of dog falls by 0.1.
        (BETTER, {"max_recall_drop": 0.11}, PROMOTE),
        (BETTER, {"max_recall_drop": 0.05}, KEEP),
        (replace(BETTER, challenger=replace(CHALLENGER, recalls={})), {}, PROMOTE),
        (replace(BETTER, challenger=replace(CHALLENGER, recalls={})), {"max_recall_drop": 1}, KEEP),
        (
            replace(BETTER, champion=replace(CHAMPION, recalls={"cat": None})),
            {"max_recall_drop": 0},
            PROMOTE,
        ),
        (
            replace(BETTER, challenger=replace(CHALLENGER, recalls={"cat": None, "dog": 1.0})),
            {"max_recall_drop": 0.5},
            KEEP,
        ),
        # Latency of a row is 1.5 times the champion's, of a batch as its own; so is the size.
        (BETTER, {"max_latency_ratio": 1.5}, PROMOTE),
        (BETTER, {"max_latency_ratio": 1.4}, KEEP),
        (
            replace(BETTER, challenger=replace(CHALLENGER, row_ms=1.0, batch_ms=9.0)),
            {"max_latency_ratio": 1.1},
            KEEP,
        ),
        (BETTER, {"max_size_ratio": 1.5}, PROMOTE),
        (BETTER, {"max_size_ratio": 1.49}, KEEP),
        # Other rows than those on which the champion was chosen.
        (replace(BETTER, has_changed_data=True), {}, PROMOTE),
        (replace(BETTER, has_changed_data=True), {"on_changed_data": "ask"}, ASK),
        (replace(BETTER, has_changed_data=True), {"on_changed_data": "keep"}, KEEP),
        (BETTER, {"on_changed_data": "ask"}, PROMOTE),
        (BETTER, {"on_changed_data": "keep"}, PROMOTE),
        (FIRST, {"on_changed_data": "keep"}, PROMOTE),
        # Two that cannot be compared are a person's matter.
        (replace(FIRST, failure="its run is gone"), {}, ASK),
        (replace(FIRST, failure="its run is gone"), {"gate_minimum": 0.99}, KEEP),
        # A person approves every promotion, and is asked for nothing else.
        (BETTER, {"require_approval": True}, ASK),
        (FIRST, {"require_approval": True}, ASK),
        (improved(0.0), {"require_approval": True}, KEEP),
        (FIRST, {"require_approval": True, "gate_minimum": 0.99}, KEEP),
        (
            replace(BETTER, has_changed_data=True),
            {"require_approval": True, "on_changed_data": "keep"},
            KEEP,
        ),
    ],
)
def test_each_rule_decides(evidence: Evidence, rules: dict[str, Any], expected: Outcome) -> None:
    assert outcome_of(evidence, **rules) is expected


@pytest.mark.parametrize(
    ("minimum", "expected"), [(0.94, KEEP), (0.95, PROMOTE), (0.96, PROMOTE), (None, PROMOTE)]
)
def test_with_order_min_the_worst_value_is_the_largest(
    minimum: float | None, expected: Outcome
) -> None:
    assert outcome_of(FIRST, "min", gate_minimum=minimum) is expected


@pytest.mark.promise("gate-evidence")
@pytest.mark.parametrize(
    ("evidence", "rules", "reasons"),
    [
        (BETTER, {}, ["accuracy 0.9 → 0.95, an improvement of +0.05 [+0.02, +0.08]"]),
        (
            BETTER,
            {"min_improvement": 0.03},
            ["accuracy 0.9 → 0.95, an improvement of +0.05 [+0.02, +0.08], not all above 0.03"],
        ),
        (FIRST, {}, ["there was no champion before it, and accuracy is 0.95"]),
        (FIRST, {"gate_minimum": 0.99}, ["accuracy 0.95 has to be at least 0.99"]),
        (
            replace(FIRST, failure="its run is gone"),
            {},
            ["they cannot be compared: its run is gone"],
        ),
        (
            replace(BETTER, has_changed_data=True),
            {"on_changed_data": "ask"},
            [
                "the test data are not those on which the champion was chosen",
                "accuracy 0.9 → 0.95, an improvement of +0.05 [+0.02, +0.08]",
            ],
        ),
        (
            BETTER,
            {"require_approval": True},
            [
                "a person has to approve it (require_approval)",
                "accuracy 0.9 → 0.95, an improvement of +0.05 [+0.02, +0.08]",
            ],
        ),
        (
            BETTER,
            {"max_recall_drop": 0.05, "max_latency_ratio": 1.2, "max_size_ratio": 1.2},
            [
                "recall of dog falls from 0.9 to 0.8, by more than 0.05",
                "1.5 ms for a row, the champion takes 1: over 1.2 times",
                "1500 bytes of weights, the champion takes 1000: over 1.2 times",
            ],
        ),
        (replace(FIRST, challenger=Score(None)), {}, ["accuracy of the challenger is not finite"]),
    ],
)
def test_every_reason_is_given_and_the_first_one_decided(
    evidence: Evidence, rules: dict[str, Any], reasons: list[str]
) -> None:
    assert list(reasons_of(evidence, **rules)) == reasons


FINITE = st.floats(-1e6, 1e6)
SHARES = st.floats(0, 1)
RECALLS = st.dictionaries(st.sampled_from(["cat", "dog", "owl"]), SHARES | st.none())
SCORES = st.builds(
    Score,
    FINITE | st.none() | st.just(math.nan) | st.just(math.inf),
    RECALLS,
    st.floats(0, 100),
    st.floats(0, 100),
    st.integers(0, 10**9),
)
IMPROVEMENTS = st.tuples(FINITE, FINITE, FINITE).map(
    lambda three: Improvement(sorted(three)[1], sorted(three)[0], sorted(three)[2])
)
EVIDENCE = st.one_of(
    st.builds(Evidence, SCORES, SCORES, IMPROVEMENTS | st.none(), st.booleans()),
    st.builds(Evidence, SCORES, failure=st.sampled_from(["", "it is gone"])),
)
RULES = st.builds(
    GateOptions,
    min_improvement=st.floats(-1, 1),
    gate_minimum=st.none() | FINITE,
    max_recall_drop=st.none() | SHARES,
    max_latency_ratio=st.none() | st.floats(0.1, 10),
    max_size_ratio=st.none() | st.floats(0.1, 10),
    on_changed_data=st.sampled_from(["compare", "ask", "keep"]),
    require_approval=st.booleans(),
)
ORDERS = st.sampled_from(["max", "min"])


@given(EVIDENCE, RULES, ORDERS)
def test_who_is_promoted_has_shown_everything(
    evidence: Evidence, rules: GateOptions, order: Order
) -> None:
    outcome, reasons = decide("accuracy", order, evidence, rules)
    assert reasons
    assert all(reasons)
    if outcome is KEEP:
        return
    challenger, champion = evidence.challenger, evidence.champion
    assert challenger.metric is not None
    assert math.isfinite(challenger.metric)
    if rules.gate_minimum is not None:
        better_of_both = max if order == "max" else min
        assert better_of_both(challenger.metric, rules.gate_minimum) == challenger.metric
    if champion is not None:
        assert evidence.improvement is not None
        assert evidence.improvement.low > rules.min_improvement
        check_guards(challenger, champion, rules)
        assert not (evidence.has_changed_data and rules.on_changed_data == "keep")
    if outcome is PROMOTE:
        assert not rules.require_approval
        assert not evidence.failure
        assert champion is None or not (
            evidence.has_changed_data and rules.on_changed_data == "ask"
        )


def check_guards(challenger: Score, champion: Score, rules: GateOptions) -> None:
    if (drop := rules.max_recall_drop) is not None:
        for name, before in champion.recalls.items():
            now = challenger.recalls.get(name)
            assert before is None or (now is not None and before - now <= drop)
    if (ratio := rules.max_latency_ratio) is not None:
        assert challenger.row_ms <= ratio * champion.row_ms
        assert challenger.batch_ms <= ratio * champion.batch_ms
    if (ratio := rules.max_size_ratio) is not None:
        assert challenger.size_bytes <= ratio * champion.size_bytes


@given(EVIDENCE, RULES, ORDERS)
def test_the_other_order_of_the_negated_metric_decides_the_same(
    evidence: Evidence, rules: GateOptions, order: Order
) -> None:
    other: Order = "min" if order == "max" else "max"
    # The improvement is above 0 for the better one in either order.
    mirrored = replace(
        evidence,
        challenger=negated(evidence.challenger),
        champion=negated(evidence.champion) if evidence.champion else None,
    )
    minimum = None if rules.gate_minimum is None else -rules.gate_minimum
    asked = decide("accuracy", order, evidence, rules)[0]
    assert (
        decide("accuracy", other, mirrored, rules.model_copy(update={"gate_minimum": minimum}))[0]
        is asked
    )


def negated(score: Score) -> Score:
    return replace(score, metric=None if score.metric is None else -score.metric)


@given(EVIDENCE, RULES, ORDERS)
def test_a_person_is_asked_about_promotions_alone(
    evidence: Evidence, rules: GateOptions, order: Order
) -> None:
    without, with_one = (
        rules.model_copy(update={"require_approval": one}) for one in (False, True)
    )
    alone = decide("accuracy", order, evidence, without)[0]
    asked = decide("accuracy", order, evidence, with_one)[0]
    assert asked is (ASK if alone is PROMOTE else alone)


@given(
    EVIDENCE,
    RULES,
    ORDERS,
    st.sampled_from(["gate_minimum", "max_recall_drop", "max_latency_ratio", "max_size_ratio"]),
)
def test_a_rule_more_never_promotes_whom_fewer_have_kept_back(
    evidence: Evidence, rules: GateOptions, order: Order, rule: str
) -> None:
    fewer = rules.model_copy(update={rule: None})
    with_fewer = decide("accuracy", order, evidence, fewer)[0]
    with_all = decide("accuracy", order, evidence, rules)[0]
    assert with_all in (with_fewer, KEEP)
