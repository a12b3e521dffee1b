"""The states of a rank's newest checkpoint, and what leads from one to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum


class SaveState(Enum):
    """What became of the newest checkpoint that was begun."""

    SAVED = "saved"
    """It is stored, or none was begun."""
    IN_FLIGHT = "in flight"
    FAILED = "failed"
    CLEARED = "cleared"
    """It failed and its files are deleted: the same step can be saved again."""


NEXT_STATES: Mapping[SaveState, frozenset[SaveState]] = {
    SaveState.SAVED: frozenset({SaveState.IN_FLIGHT}),
    SaveState.IN_FLIGHT: frozenset({SaveState.SAVED, SaveState.FAILED}),
    # A commit whose answer was lost is found later.
    SaveState.FAILED: frozenset({SaveState.IN_FLIGHT, SaveState.CLEARED, SaveState.SAVED}),
    SaveState.CLEARED: frozenset({SaveState.IN_FLIGHT}),
}


@dataclass(frozen=True)
class SaveStatus:
    """The state, and since when nothing could be stored. Times are those of one monotonic clock."""

    state: SaveState = SaveState.SAVED
    step: int = -1
    """The step of the newest checkpoint that was begun."""
    unsaved_since: float = 0.0
    """When the first checkpoint was begun that neither is stored itself nor has a successor."""
    failed_at: float | None = None
    """When the newest failure was noticed; None: none since the last one that was stored."""

    def began(self, step: int, now: float) -> SaveStatus:
        """A checkpoint of `step` is in flight."""
        since = now if self.failed_at is None else self.unsaved_since
        return self._become(SaveState.IN_FLIGHT, step=step, unsaved_since=since)

    def stored(self) -> SaveStatus:
        """It is stored, and all that failed before is covered by it."""
        return self._become(SaveState.SAVED, failed_at=None)

    def failed(self, now: float) -> SaveStatus:
        """It could not be stored."""
        return self._become(SaveState.FAILED, failed_at=now)

    def cleared(self) -> SaveStatus:
        """What it had stored is deleted."""
        return self._become(SaveState.CLEARED)

    def is_retry_due(self, now: float, retry_s: float) -> bool:
        """Whether it failed, and `retry_s` ago at least."""
        if self.state is not SaveState.FAILED or self.failed_at is None:
            return False
        return now - self.failed_at >= retry_s

    def is_unsaved_too_long(self, now: float, limit_s: float) -> bool:
        """Whether nothing could be stored for longer than `limit_s`; 0: no limit."""
        return self.state is not SaveState.SAVED and 0 < limit_s < now - self.unsaved_since

    def _become(self, state: SaveState, **changes: float | None) -> SaveStatus:
        assert state in NEXT_STATES[self.state], f"{self.state} does not become {state}"
        return replace(self, state=state, **changes)  # type: ignore[arg-type]  # as the fields are
