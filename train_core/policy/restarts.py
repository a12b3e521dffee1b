"""The decision after an attempt: another one, after a pause, or the end of the training.

`driver/attempts/supervisor.py` carries it out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class Ended(Enum):
    """How an attempt ended."""

    IN_ORDER = "in order"
    """All ranks came to their end."""
    LOST = "lost"
    """A process or a connection died, so that another attempt may well succeed."""
    AS_ASKED = "as asked"
    """Because it was requested to, with or without a new checkpoint."""
    RAISED = "raised"
    """With an error of a training function, which may be allowed to raise some."""
    FAILED = "failed"
    """With an error that another attempt would meet again."""


class Asked(Enum):
    """The newest request that an attempt received."""

    NOTHING = "nothing"
    MOVE = "move"
    """To save and end, for another attempt on other workers."""
    END = "end"
    """To save and end."""


class Next(Enum):
    """The supervisor's next action after an attempt."""

    DONE = "done"
    """The training has come to its own end."""
    MOVE = "move"
    """Another attempt, on other workers."""
    RESTART = "restart"
    """Another attempt, as this one died."""
    STOPPED = "stopped"
    """The training was asked to end, and may go on later."""
    GIVE_UP = "give up"
    """Attempts died too often without progress."""
    FAIL = "fail"
    """The attempt's error is the training's."""


@dataclass(frozen=True)
class RestartRules:
    """How often attempts may die, and how long to wait between them."""

    max_restarts: int = 3
    """The largest number in a row without progress."""
    max_failures: int = 0
    """The largest number of errors that a training function may raise; -1: any."""
    pause_s: float = 2.0
    """The pause before the second restart in a row; the next ones are 3, 7, 15, … times as long."""

    def pause_before(self, restart: int) -> float:
        """The seconds before the restart of that number; the first one begins at once."""
        return self.pause_s * float(2 ** (restart - 1) - 1)


@dataclass(frozen=True)
class AttemptEnd:
    """All facts about an attempt's end that the decision depends on."""

    ended: Ended
    asked: Asked = Asked.NOTHING
    has_stopped: bool = False
    """The attempt's last checkpoint was saved for a request."""
    has_saved: bool = True
    """The last step is committed."""
    has_progress: bool = False
    """There is a newer checkpoint than when the attempt began, or survivors of it have come further
    than those of earlier ones."""
    has_finished: bool = False
    """The newest checkpoint is the training's last: what died then was only tidying up."""


@dataclass(frozen=True)
class Decision:
    """The next action, and its details."""

    next: Next
    restarts: int = 0
    """The number of restarts in a row without progress, this one included."""
    pause_s: float = 0.0
    """How long to wait before it."""
    failures: int = 0
    """The number of errors that a training function has raised, this one included."""


def after_attempt(
    end: AttemptEnd, restarts: int, rules: RestartRules, failures: int = 0
) -> Decision:
    """Decide on the next action.

    `restarts` counts those in a row without progress, `failures` the errors that a training
    function has raised.
    """
    decision = _after_attempt(end, restarts, rules, failures)
    return replace(decision, failures=failures + (end.ended is Ended.RAISED))


def _after_attempt(end: AttemptEnd, restarts: int, rules: RestartRules, failures: int) -> Decision:
    match end.ended:
        case Ended.FAILED:
            return Decision(Next.FAIL, restarts)
        case Ended.LOST | Ended.RAISED | Ended.AS_ASKED if end.has_finished:
            return Decision(Next.DONE, restarts)
        case Ended.AS_ASKED:
            return Decision(Next.STOPPED if end.asked is Asked.END else Next.MOVE)
        case Ended.RAISED if 0 <= rules.max_failures <= failures:
            return Decision(Next.FAIL, restarts)
        case Ended.RAISED:
            return Decision(Next.STOPPED if end.asked is Asked.END else Next.RESTART)
        case Ended.IN_ORDER:
            return Decision(_after_end_in_order(end))
        case Ended.LOST if end.asked is Asked.END:
            return Decision(Next.STOPPED, restarts)
        case Ended.LOST:
            restarts = 1 if end.has_progress else restarts + 1
            if restarts > rules.max_restarts:
                return Decision(Next.GIVE_UP, restarts)
            return Decision(Next.RESTART, restarts, rules.pause_before(restarts))


def _after_end_in_order(end: AttemptEnd) -> Next:
    # A training that came to its own end in the step of a request keeps its own reason: it is done.
    if end.has_saved and not end.has_stopped:
        return Next.DONE
    return Next.MOVE if end.asked is Asked.MOVE else Next.STOPPED
