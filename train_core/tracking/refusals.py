"""What a tracker refuses for good: told once, left out, and everything else gets through.

A proxy does not take a file of that size, a person has no right to a registered model, a name is
not allowed: the next request may be answered all the same. `evertrain mirror` tries again what was
left out; until then the run has it in the tag `evertrain.not_shown`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum

from train_core.errors import StorageError
from train_core.storage.objects.retry_policy import may_pass

_PATIENCE = 5
"""How often one part may fail, as in an outage, while the tracker answers all else."""
_log = logging.getLogger(__name__)


class Failure(Enum):
    """What a failed request to a tracker calls for."""

    OUTAGE = "outage"
    """The same request may be answered later."""
    LOGIN = "login"
    """It may be answered once a person has renewed a login or a certificate."""
    GONE = "gone"
    """The run, the experiment or the page is not there: its id has to be asked for again."""
    REFUSED = "refused"
    """The same request is refused again, whenever it is made."""


def failure_of(error: BaseException) -> Failure:
    """The kind of an error of what is read or prepared, and of a tracker without own errors."""
    return Failure.OUTAGE if isinstance(error, StorageError) or may_pass(error) else Failure.REFUSED


class Refusals:
    """What a tracker refused of one run, and why."""

    def __init__(
        self,
        describe: Callable[[Exception], str] = str,
        failure_of: Callable[[BaseException], Failure] = failure_of,
    ) -> None:
        self.are_ids_new = True
        """Whether the tracker was just asked for the ids: else a missing run is asked for again."""
        self.answers: Callable[[], bool] = bool
        """Whether the tracker answers an easy question."""
        self.count = 0
        """How often something was refused, what was told before too."""
        self._describe = describe
        self._failure_of = failure_of
        self._told: dict[str, None] = {}
        self._failures: dict[str, int] = {}
        self._counted: Exception | None = None
        """The failure that was counted last."""
        self.parts: set[str] = set()
        """What was refused already, so that nothing large is sent a second time."""

    @property
    def told(self) -> list[str]:
        """What was refused, and why; each once."""
        return list(self._told)

    @contextmanager
    def passing(self, what: str) -> Iterator[None]:
        """Leave out the block's part `what` if it is refused for good; in an outage, raise."""
        try:
            yield
        except Exception as error:
            if not self.is_final(what, error):
                raise
            self.add(what, error)
        else:
            self._failures.pop(what, None)
            self._counted = None

    def is_final(self, what: str, error: Exception) -> bool:
        """Whether to go on without `what`: asking again would not help."""
        kind = self._failure_of(error)
        if kind is Failure.OUTAGE:
            if error is self._counted:
                # Of a part within this one.
                return False
            self._counted = error
            # An upload that a proxy cuts off, or an error of the server's own: no outage ends that.
            self._failures[what] = self._failures.get(what, 0) + 1
            return self._failures[what] >= _PATIENCE and self.answers()
        return kind is Failure.REFUSED or (kind is Failure.GONE and self.are_ids_new)

    def add(self, what: str, error: Exception) -> None:
        """Tell that `what` is left out, once."""
        self.count += 1
        self.parts.add(what)
        said = " ".join(self._describe(error).split())[:500]
        told = f"{what}: {type(error).__name__}: {said}"
        if told not in self._told:
            self._told[told] = None
            _log.warning("not shown in MLflow, which does not take it: %s", told)
            _log.debug("where it failed", exc_info=True)
