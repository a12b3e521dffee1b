from __future__ import annotations

import pytest

from train_core.policy.champion.gate_decision import Outcome
from train_core.policy.champion.next_step import Decided, next_step

ANSWERS = {"": None, "yes": True, "no": False}


def decided(text: str) -> list[Decided]:
    """Of `1:ask 2:ask=no`: asked beside the champion of entry 1, then of 2, which was rejected."""
    found = []
    for word in text.split():
        number, _, rest = word.partition(":")
        outcome, _, answer = rest.partition("=")
        found.append(Decided(int(number), Outcome(outcome), ANSWERS[answer]))
    return found


@pytest.mark.promise("no-is-final")
@pytest.mark.parametrize(
    ("decisions", "champion", "step"),
    [
        # Nobody has decided on it in comparison with the champion of now.
        ("", 0, "compare"),
        ("", 3, "compare"),
        ("1:promote", 2, "compare"),
        ("1:keep", 2, "compare"),
        # The decision on it is carried out, by whoever goes on with the run.
        ("0:promote", 0, "promote"),
        ("1:keep", 1, "kept"),
        ("1:ask", 1, "wait"),
        # A person's answer to the comparison of now.
        ("1:ask=yes", 1, "promote"),
        ("1:ask=no", 1, "rejected"),
        # An approval is one of a comparison: with another champion there is another question.
        ("1:ask=yes", 2, "compare"),
        ("1:ask=yes 2:ask", 2, "wait"),
        ("1:ask=yes 2:keep", 2, "kept"),
        ("1:ask=yes 2:promote", 2, "promote"),
        # A question that was not answered is replaced by the newer one.
        ("1:ask", 2, "compare"),
        ("1:ask 2:promote", 2, "promote"),
        ("1:ask 2:ask=yes", 2, "promote"),
        # A rejection is one of the version, whoever is champion then, and whenever it came.
        ("1:ask=no", 2, "rejected"),
        ("1:ask=no 2:promote", 2, "rejected"),
        ("1:ask=no 2:ask", 2, "rejected"),
        ("1:ask=no 2:ask=yes", 2, "rejected"),
        ("1:ask=yes 2:ask=no", 2, "rejected"),
        ("1:ask=yes 2:ask=no", 3, "rejected"),
        # The champion is gone back to that it was compared with before: the same entry never
        # comes again, so a rollback is another comparison.
        ("1:keep 2:keep", 3, "compare"),
    ],
)
def test_what_follows_for_a_version(decisions: str, champion: int, step: str) -> None:
    assert next_step(decided(decisions), champion, serves=False) == step


@pytest.mark.promise("no-is-final")
@pytest.mark.parametrize("decisions", ["", "1:promote", "1:ask", "1:ask=yes", "1:ask=no", "1:keep"])
def test_nothing_follows_for_the_champion_not_even_for_one_that_was_gone_back_to(
    decisions: str,
) -> None:
    assert next_step(decided(decisions), 2, serves=True) == "serves"
