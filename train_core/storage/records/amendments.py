"""What a run was asked for last: run.json says what it began with, `asked/` what followed.

More epochs, other workers, another cadence may be asked of a run that exists. A driver that
continues it without values of its own takes the newest.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from train_core.config import TrainConfig
from train_core.requests import RecordedPipeline
from train_core.storage.objects.store import Store
from train_core.storage.records.documents import read_document
from train_core.storage.records.names import ASKED, LeaseName
from train_core.storage.records.run_record import PipelineDocument


class Amendment(BaseModel):
    """`asked/0007.json`: what attempt 7 was asked for."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    config: TrainConfig
    pipeline: PipelineDocument
    """What the flow was asked beyond the training."""

    @property
    def requested(self) -> RecordedPipeline:
        """What the flow was asked beyond the training."""
        return RecordedPipeline.read(self.pipeline)


def newest_amendment(store: Store) -> Amendment | None:
    """What was asked last; None if that is what run.json says.

    Raises CheckpointError if it is damaged.
    """
    parsed = (LeaseName.parse(name) for name in store.names(ASKED))
    last = max((name for name in parsed if name), default=None)
    if last is None:
        return None
    return read_amendment(store, last.attempt)


def read_amendment(store: Store, attempt: int) -> Amendment:
    """What `attempt` was asked for. Raises FileNotFoundError if that is not there."""
    key = f"{ASKED}/{LeaseName(attempt)}"
    return read_document(store, Amendment, key, "what a run was asked")[0]


def amend(store: Store, attempt: int, asked: Amendment) -> None:
    """Write down what `attempt` is asked for; only the attempt itself does."""
    data = (asked.model_dump_json(indent=1) + "\n").encode()
    store.create(f"{ASKED}/{LeaseName(attempt)}", data)
