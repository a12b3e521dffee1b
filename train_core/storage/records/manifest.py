"""The manifest: one small JSON object, created once, last, that makes a result exist."""

from __future__ import annotations

import operator
import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, model_validator

from train_core.errors import CheckpointError
from train_core.policy.stop_reasons import is_final
from train_core.storage.objects.digest_algorithm import ALGORITHM, digest_of
from train_core.storage.objects.store import Store
from train_core.storage.records.documents import (
    FORMAT,
    LARGEST_NUMBER,
    MAX_ENTRIES,
    Count,
    Text,
    read_document,
    read_small,
    with_checksum,
)
from train_core.storage.records.names import (
    CHECKPOINTS,
    MANIFEST_JSON,
    CheckpointName,
    check_reported_name,
)

Metrics = Annotated[dict[Text, float | None], Field(max_length=MAX_ENTRIES)]
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")


class FileEntry(BaseModel):
    """A file that a manifest vouches for."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, AfterValidator(check_reported_name)]
    size_bytes: Count
    digest: str = Field(pattern=r"^[0-9a-f]{64}$")

    @classmethod
    def of(cls, name: str, data: bytes | memoryview) -> FileEntry:
        """The entry of a file with these bytes."""
        return cls(name=name, size_bytes=len(data), digest=digest_of(data))


class Manifest(BaseModel):
    """What every manifest says: which format and kind, and every file with size and digest."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    format: Literal[1] = FORMAT
    kind: str
    digest_algorithm: Literal["blake3"] = ALGORITHM
    created_at: Text = Field(description="UTC, ISO 8601.")
    files: tuple[FileEntry, ...] = Field(max_length=MAX_ENTRIES)

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        for field, is_plain in self._listed.items():
            seen: set[str] = set()
            for number, entry in enumerate(getattr(self, field)):
                if is_plain and not _SAFE_NAME.fullmatch(entry.name):
                    raise ValueError(
                        f"{field}.{number}.name: {entry.name!r} is not the name of a file in the "
                        "same folder"
                    )
                if entry.name in seen:
                    raise ValueError(f"{field}.{number}.name: {entry.name!r} is listed twice")
                seen.add(entry.name)
        return self

    @property
    def _listed(self) -> dict[str, bool]:
        """The fields that list files, and whether those lie in one folder, with none in it."""
        return {"files": True}

    def to_json(self) -> bytes:
        """The manifest's bytes as they are stored."""
        return with_checksum(self)


class RequestedValidation(BaseModel):
    """How a validation function is to measure a reported folder. Its result is an evaluation."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    fn_kwargs: dict[str, Any] | None = Field(
        default=None,
        description="The arguments of the report's ValidationTaskConfig; null: it gave none.",
    )
    timeout_s: float | None = Field(default=None, description="Its limit of time; null: none.")


class ReportedFolder(BaseModel):
    """A folder that a training function reported: its files have their paths in it as names."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Text = Field(description="checkpoint_dir_name, if the function gave one.")
    world_size: int = Field(
        ge=1, le=LARGEST_NUMBER, description="The ranks that reported together."
    )
    metrics: dict[str, JsonValue] | None = Field(
        default=None,
        exclude_if=lambda metrics: metrics is None,
        description="What rank 0 reported with it, where that is more than the numbers in the "
        "manifest's `metrics`: whole numbers, truth values, texts, lists.",
    )
    requested_validation: RequestedValidation | None = Field(
        default=None,
        exclude_if=operator.not_,
        description="Set if a validation function is to measure it.",
    )


class CommitFacts(BaseModel):
    """What a commit says of the training, of a workload as of a function."""

    # `scheduled` has another name in what is stored.
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        validate_by_name=True,
        serialize_by_alias=True,
    )

    attempt: int = Field(ge=1, le=LARGEST_NUMBER)
    step: Count = Field(description="Optimizer steps done.")
    epoch: Count = Field(description="Epochs completed.")
    samples_seen: Count
    metrics: Metrics = Field(
        description="The newest value of each metric; null where it was not finite."
    )
    validated: bool = Field(description="Whether the validation metrics are of this very step.")
    stopped_by: Text = Field(
        description="Why the training ended with this step; empty: it did not; "
        "request: it was asked to, and may go on; failure: a function failed, and may go on."
    )
    scheduled: bool = Field(
        default=True,
        alias="in_turn",
        description="Whether it was due. One that was not, as where somebody stopped the training, "
        "goes when the next is committed: no rule counts it.",
    )
    elapsed_s: float = Field(default=0, ge=0, description="Seconds of training until here.")
    processors: tuple[Text, ...] = Field(
        default=(),
        max_length=MAX_ENTRIES,
        description="What it was computed on, oldest first: an entry for each change. Empty: of a "
        "training function, or of a version that did not record it.",
    )


class CheckpointManifest(CommitFacts, Manifest):
    """The commit of a checkpoint."""

    kind: Literal["checkpoint"] = "checkpoint"
    journal: tuple[FileEntry, ...] = Field(
        max_length=MAX_ENTRIES,
        description="The segments in ../../journal that this commit covers, oldest first.",
    )

    reported: ReportedFolder | None = Field(
        default=None,
        exclude_if=lambda reported: reported is None,
        description="Set if a training function reported it.",
    )
    returned: JsonValue = Field(
        default=None,
        exclude_if=lambda returned: returned is None,
        description="What a training function returned on rank 0; null: nothing, or no JSON.",
    )

    @classmethod
    def of(
        cls,
        facts: CommitFacts,
        *,
        files: tuple[FileEntry, ...],
        journal: tuple[FileEntry, ...],
        reported: ReportedFolder | None = None,
        returned: JsonValue = None,
    ) -> Self:
        """The commit, now, of these files and of the journal until here."""
        created_at = datetime.now(UTC).isoformat()
        return cls(
            created_at=created_at,
            files=files,
            journal=journal,
            reported=reported,
            returned=returned,
            **dict(facts),
        )

    @property
    def _listed(self) -> dict[str, bool]:
        # A folder that a function reports may have folders in it.
        return {"files": not self.reported, "journal": True}

    @property
    def is_function_end(self) -> bool:
        """Whether it stands for the end of a training function, and has no folder.

        The function has returned, or it failed or was stopped after this and may go on.
        """
        return self.reported is None and not self.files

    @property
    def reports_again(self) -> bool:
        """Whether a training function that goes on makes the newest reports of this again.

        It failed or was stopped here, and goes on from its newest folder.
        """
        return self.is_function_end and not self.is_last

    @property
    def is_last(self) -> bool:
        """Whether the training ended here by itself, and not because somebody wanted it."""
        return is_final(self.stopped_by)


class EvaluationManifest(Manifest):
    """The commit of one checkpoint's evaluation on one split."""

    kind: Literal["evaluation"] = "evaluation"
    checkpoint: Text
    checkpoint_digest: Text
    split: Text
    num_samples: Count
    max_batches: Count = Field(description="A dry run measures a part; 0: the whole split.")
    metrics: Metrics


class PredictionsManifest(Manifest):
    """The commit of a batch inference."""

    kind: Literal["predictions"] = "predictions"
    checkpoint: Text
    checkpoint_digest: Text
    step: Count
    input: dict[str, Any]
    num_rows: Count
    rows: tuple[Count, ...] = Field(
        max_length=MAX_ENTRIES, description="Rows of each file, in the order of `files`."
    )
    without_prediction: Count = Field(
        default=0,
        exclude_if=operator.not_,
        description="Rows for which the model gives NaN: their predictions are null.",
    )
    model: Text = Field(
        default="",
        exclude_if=operator.not_,
        description="The registered model's version, if it was asked for by that.",
    )


M = TypeVar("M", bound=Manifest)


def is_committed(store: Store, name: CheckpointName) -> bool:
    """Whether the checkpoint has a manifest: it was committed, and is not deleted."""
    return store.exists(f"{CHECKPOINTS}/{name}/{MANIFEST_JSON}")


def read_manifest(store: Store, model: type[M], key: str = MANIFEST_JSON) -> tuple[M, str]:
    """The manifest at `key` and its digest.

    Raises FileNotFoundError if there is none, and CheckpointError if it is too large, altered,
    not JSON, of another kind, or names files outside its own folder; ConfigError if a newer
    evertrain wrote it: such a one is not damaged.
    """
    what = f"a manifest of format {FORMAT}"
    found, data = read_document(store, model, key, what, has_checksum=True)
    return found, digest_of(data)


def committed_bytes(store: Store, key: str, digest: str) -> bytes:
    """The bytes of the manifest at `key` whose digest that is.

    Raises CheckpointError if it was deleted or altered since.
    """
    try:
        data = read_small(store, key)
    except FileNotFoundError as error:
        raise CheckpointError(f"{error}: the checkpoint was deleted meanwhile") from error
    if digest_of(data) != digest:
        raise CheckpointError(f"{store.uri(key)} was altered since it was opened")
    return data
