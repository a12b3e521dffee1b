"""run.json: what a run was created with."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from train_core.config import TrainConfig
from train_core.requests import RecordedPipeline, SearchTrial
from train_core.storage.records.data_files import SourceRecord
from train_core.storage.records.manifest import FileEntry

NEWEST_STEP_RULES = 2
"""By which a new run computes its steps; an older run goes on by those that it began with.

1: a parameter that no shard reaches has a gradient of zeros if there are several shards; all
modules are in training mode; on CPUs, any algorithm is used.
2: such a parameter has no gradient; a part that `model()` set to evaluation stays there; on CPUs
with several threads, deterministic algorithms are used if `deterministic` is set.
"""


class Origin(BaseModel):
    """Whose weights a run begins with: what `init_from` stood for."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    uri: str = Field(description="The address of a checkpoint or of a .safetensors file.")
    digest: str = Field(description="BLAKE3 of the checkpoint's manifest, or of the file.")


def _checked(pipeline: dict[str, Any]) -> dict[str, Any]:
    RecordedPipeline.read(pipeline)
    return pipeline


PipelineDocument = Annotated[dict[str, Any], AfterValidator(_checked)]
"""What the flow was asked beyond the training, as it lies on the disk: `RecordedPipeline` reads it.

It is kept whole, with what an earlier version recorded.
"""


class RunRecord(BaseModel):
    """run.json: what was asked, and the surroundings that the numbers depend on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    name: str
    created_at: str
    flow_run: str = Field(default="", description="The flow run after which the run is named.")
    config: TrainConfig
    pipeline: PipelineDocument = Field(description="What the flow was asked beyond the training.")
    fingerprint: dict[str, str] = Field(
        description="Library versions, instruction set, threads: other values, other bits."
    )
    datasets: dict[str, dict[str, Any]] = Field(description="Samples and digest of each split.")
    input_state: str = Field(
        default="",
        description="Of the names, sizes and versions of the files to score; empty: a split is.",
    )
    sources: dict[str, SourceRecord] = Field(
        default_factory=dict, description="The data that the workload names, by its names."
    )
    files: FileEntry | None = Field(
        default=None, description="The list of their files, in data/; None where it names none."
    )
    fitted: FileEntry | None = Field(
        default=None, description="What the workload's fit() gave, in data/; None: nothing."
    )
    code: dict[str, str] = Field(
        default_factory=dict,
        description="evertrain's version, the commit that has the workload's source file; before "
        "`modules` was recorded, the digest of that file.",
    )
    modules: dict[str, str] = Field(
        default_factory=dict, description="The digest of each of the user's own modules."
    )
    packages: dict[str, str] = Field(
        default_factory=dict,
        description="The versions of what those import, and of what that requires.",
    )
    forked_from: str = Field(default="", description="The checkpoint that the run began with.")
    origin: Origin | None = Field(default=None, description="Whose weights the run began with.")
    rehearsed: str = Field(
        default="",
        description="The digest of what a rehearsal depends on, with which the workload passed one "
        "for this run or before; empty: it passed none.",
    )
    search: SearchTrial | None = Field(
        default=None,
        exclude_if=lambda search: search is None,
        description="The trial of a search that the run is of; left out: it is of none.",
    )
    step_rules: int = Field(
        default=1, ge=1, description="By which rules the run computes a step (run_record.py)."
    )

    @property
    def requested(self) -> RecordedPipeline:
        """What the flow was asked beyond the training."""
        return RecordedPipeline.read(self.pipeline)
