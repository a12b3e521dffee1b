"""The state of a registered model: a fold over what happened to it, and what follows from it. Pure.

The events are facts: whoever records one judges it first, by the state of the events before it. An
approval is one of a comparison with one champion. A rejection is final for the version: what was
rejected is compared again only as a new version.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from train_core.policy.champion.gate_decision import Outcome

Compared = tuple[int, int]
"""A version, and the number of the champion that it is compared with; 0: there was none."""


@dataclass(frozen=True)
class Decided:
    """The gate has decided on a version, in comparison with the champion of that number."""

    version: int
    champion_number: int
    outcome: Outcome


@dataclass(frozen=True)
class Answered:
    """A person has answered the gate's question about one comparison."""

    version: int
    champion_number: int
    is_approved: bool


@dataclass(frozen=True)
class Promoted:
    """A version became the champion of that number, by the gate or a person's approval."""

    version: int
    number: int


@dataclass(frozen=True)
class RolledBack:
    """A person went back to a version, which became the champion of that number."""

    version: int
    number: int


Event = Decided | Answered | Promoted | RolledBack


class NextStep(StrEnum):
    """What follows for a version."""

    SERVES = "serves"
    """Nothing: it is the champion."""
    REJECTED = "rejected"
    """Nothing: a person has rejected it, in comparison with whomever."""
    COMPARE = "compare"
    """The gate compares it with the present champion."""
    PROMOTE = "promote"
    """It becomes champion: the gate has decided so, or a person has approved it."""
    WAIT = "wait"
    """A person is asked, and has not answered."""
    KEPT = "kept"
    """Nothing: the champion stays."""


@dataclass(frozen=True)
class ModelState:
    """What the events of a registered model come to."""

    reigns: tuple[Promoted | RolledBack, ...] = ()
    """The champions, oldest first."""
    outcomes: dict[Compared, Outcome] = field(default_factory=dict)
    answers: dict[Compared, bool] = field(default_factory=dict)
    """Whether a person has approved; a comparison that nobody has answered is not there."""

    @property
    def champion(self) -> int | None:
        """The version that serves; None: there is none yet."""
        return self.reigns[-1].version if self.reigns else None

    @property
    def champion_number(self) -> int:
        """The number of the champion; 0: there is none yet."""
        return self.reigns[-1].number if self.reigns else 0

    @property
    def decided(self) -> list[int]:
        """The versions on which the gate has decided, in their order."""
        return sorted({version for version, _ in self.outcomes})

    def standing(self, version: int) -> Compared | None:
        """The comparison of a version that counts, of those on which the gate has decided.

        The one that a person has rejected, as none counts after that; else that with the present
        champion, or the newest one. None if the gate has not decided on the version.
        """
        found = sorted(one for one in self.outcomes if one[0] == version)
        rejected = [one for one in found if self.answers.get(one) is False]
        # A greater number than the present champion's has one whose entry was deleted.
        present = [one for one in found if one[1] == self.champion_number]
        return next(iter(rejected + present + found[::-1]), None)

    def next_step(self, version: int) -> NextStep:
        """What follows for a version, while the present champion serves."""
        if self.champion == version:
            return NextStep.SERVES
        if self._is_rejected(version):
            return NextStep.REJECTED
        comparison = (version, self.champion_number)
        match self.outcomes.get(comparison):
            case None:
                return NextStep.COMPARE
            case Outcome.PROMOTE:
                return NextStep.PROMOTE
            case Outcome.KEEP:
                return NextStep.KEPT
            case Outcome.ASK:
                return NextStep.PROMOTE if self.answers.get(comparison) else NextStep.WAIT

    def can_be_answered(self, version: int, champion_number: int) -> bool:
        """Whether the gate asks a person about that comparison, and an answer would still count."""
        comparison = (version, champion_number)
        is_asked = self.outcomes.get(comparison) == Outcome.ASK and comparison not in self.answers
        return is_asked and self.champion != version and not self._is_rejected(version)

    def champion_before(self) -> int | None:
        """The version that a rollback goes back to: the champion before the present one.

        What was rolled back is no champion to go back to: after 1, 2, 3 and a rollback to 2, the
        next rollback goes to 1. None if there was no champion before.
        """
        standing: list[int] = []
        for reign in self.reigns:
            version = reign.version
            if isinstance(reign, RolledBack) and version in standing:
                del standing[standing.index(version) :]
            if not standing or standing[-1] != version:
                standing.append(version)
        return standing[-2] if len(standing) > 1 else None

    def _is_rejected(self, version: int) -> bool:
        return any(not yes for (of, _), yes in self.answers.items() if of == version)


def fold(events: Iterable[Event]) -> ModelState:
    """The state that these events lead to, oldest first.

    Of two decisions on a comparison, and of two answers to it, the first one counts.
    """
    reigns: list[Promoted | RolledBack] = []
    outcomes: dict[Compared, Outcome] = {}
    answers: dict[Compared, bool] = {}
    for event in events:
        match event:
            case Decided(version, champion_number, outcome):
                outcomes.setdefault((version, champion_number), outcome)
            case Answered(version, champion_number, is_approved):
                answers.setdefault((version, champion_number), is_approved)
            case Promoted() | RolledBack():
                reigns.append(event)
    return ModelState(tuple(reigns), outcomes, answers)
