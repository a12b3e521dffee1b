"""Arguments that several commands share."""

from __future__ import annotations

from pydantic import BaseModel, Field

from evertrain_flows.defaults import default_storage


class InStorage(BaseModel):
    """Arguments of all commands that read a storage."""

    storage: str = Field(
        default_factory=default_storage,
        description="Folder of the runs. Unset: EVERTRAIN_STORAGE, or .evertrain/runs.",
    )
