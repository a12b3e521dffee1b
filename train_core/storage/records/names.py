"""The names in a run folder, built and parsed here.

`storage/coordination` names its heartbeats, requests to stop and calls itself.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

from train_core.errors import ConfigError
from train_core.policy.champion.model_names import is_model_name

RUN_JSON = "run.json"
REPORT_JSON = "report.json"
LIVE_JSON = "live.json"
CURVES_PNG = "curves.png"
MANIFEST_JSON = "manifest.json"
PREDICTIONS_MANIFEST_JSON = "_manifest.json"
"""Of predictions: readers of Parquet folders skip a name that begins so."""
QUARANTINED_JSON = "quarantined.json"
RAY_SNAPSHOT_JSON = "checkpoint_manager_snapshot.json"
"""Ray Train's own list of the checkpoints of an attempt. Ray chose the name."""
REPORTED_FOLDER = "files"
"""Where the files of a reported folder lie in their checkpoint, beside its manifest."""
MODEL_FILE = "model.safetensors"
STATE_JSON = "state.json"
CONFUSION_MATRIX_JSON = "confusion_matrix.json"
SCORES_JSON = "scores.json"
CHECKPOINTS = "checkpoints"
JOURNAL = "journal"
LEASES = "lease"
PINS = "pins"
EVALUATIONS = "evaluations"
PREDICTIONS = "predictions"
ASKED = "asked"
CALLS = "calls"
DATA = "data"
DECISIONS = "decisions"

MODELS = "_models"
"""Where a storage has its registered models, beside the runs: no run's name begins so."""
EVENTS = "log"
VERSIONS = "versions"
CHAMPIONS = "champions"

LATEST = "latest"
"""What stands for the newest finished run, so no run is called so."""

_LONGEST_PATH = 1024
_LONGEST_PART = 255
_LONGEST_SLUG = 80
_UNIQUE_CHARACTERS = 6

_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
# A longer number than one of 18 digits is none of evertrain's.
_STEP, _ATTEMPT = r"(\d{8,18})", r"(\d{4,18})"
_CHECKPOINT = re.compile(rf"step-{_STEP}-a{_ATTEMPT}")
_JOB = re.compile(rf"(.+)-a{_ATTEMPT}-([0-9a-f]{{8}})(?:-(\d{{1,18}}))?")
_SEGMENT = re.compile(rf"steps-{_STEP}-{_STEP}-a{_ATTEMPT}\.jsonl")
_LEASE = re.compile(rf"{_ATTEMPT}\.json")
_FENCE_LIST = re.compile(rf"{_ATTEMPT}-seal\.json")
_DECISION = re.compile(rf"([^/]+)/v{_STEP}-c{_STEP}\.json")
_NUMBERED = re.compile(rf"{_STEP}\.json")
_REGISTERED = re.compile(rf"registered-{_STEP}\.json")
_WHO = re.compile(r"[a-z][a-z0-9-]{0,99}")
_PIN = re.compile(rf"([^/]+)/({_WHO.pattern})\.json")


def manifest_names(key: str) -> tuple[str, ...]:
    """The names that the manifest of the result in the folder `key` may have, the present first.

    Earlier versions gave that of predictions the name that all others have.
    """
    if key.startswith(f"{PREDICTIONS}/"):
        return PREDICTIONS_MANIFEST_JSON, MANIFEST_JSON
    return (MANIFEST_JSON,)


def has_manifest(key: str, names: Collection[str]) -> bool:
    """Whether the names in the folder `key` of a result have a manifest: it was committed."""
    return any(name in names for name in manifest_names(key))


def is_run_name(name: str) -> bool:
    """Whether `name` can be one folder's name on every storage."""
    return bool(_RUN_NAME.fullmatch(name)) and ".." not in name


def check_run_name(name: str) -> str:
    """`name`, if it can be one folder's name on every storage.

    Raises ConfigError for anything else: separators, `..`, blanks, more than 128 characters.
    """
    if not is_run_name(name):
        raise ConfigError(
            f"run name {name!r} is not usable: take letters, digits, '.', '_' and '-', beginning "
            "with a letter or digit, at most 128 of them, without '..' or '/'"
        )
    return name


def check_new_run_name(name: str) -> str:
    """`name`, if a new run can be called so: batch inference means the newest by `latest`.

    Raises ConfigError.
    """
    if check_run_name(name) == LATEST:
        raise ConfigError(
            f"run name {name!r} is not usable: in batch inference it means the newest finished run"
        )
    return name


def check_reported_name(name: str) -> str:
    """`name`, if it is the path of a file inside a folder on every storage.

    Raises ValueError for anything else: an absolute path, `..`, an empty part, a backslash, a
    control character, a part of more than 255 bytes, more than 1024 bytes in all.
    """
    parts = name.split("/")
    is_usable = (
        len(name.encode()) <= _LONGEST_PATH
        and all(part not in ("", ".", "..") for part in parts)
        and all(len(part.encode()) <= _LONGEST_PART for part in parts)
        and not any(character == "\\" or not character.isprintable() for character in name)
    )
    if not is_usable:
        raise ValueError(f"{name!r} is not the path of a file in a folder")
    return name


def is_of_function(key: str) -> bool:
    """Whether the key can only be that of a folder that a training function wrote itself."""
    first = key.split("/", maxsplit=1)[0]
    ours = {CHECKPOINTS, JOURNAL, LEASES, PINS, EVALUATIONS, PREDICTIONS, ASKED, CALLS, DATA}
    ours |= {DECISIONS}
    return first not in ours | {"", ".", ".."}


def workload_slug(workload: str) -> str:
    """The class of `package.module:Name` as small letters, digits and dashes."""
    found = re.sub(r"[^a-z0-9]+", "-", workload.rpartition(":")[2].lower()).strip("-")
    return found[:_LONGEST_SLUG] or "run"


def default_run_name(workload: str, scheduled: datetime, unique: str) -> str:
    """What a run is called that was given no name, as `clinic-20261123-030000-01a206`.

    `scheduled` is when it was to begin; the end of `unique` tells apart what begins together.
    """
    time = scheduled.astimezone(UTC)
    return f"{workload_slug(workload)}-{time:%Y%m%d-%H%M%S}-{unique[-_UNIQUE_CHARACTERS:]}"


def validation_key(checkpoint: CheckpointName) -> str:
    """Where the evaluation lies that a training function's validation function has made."""
    return f"{EVALUATIONS}/{checkpoint}/validation-by-function"


@dataclass(frozen=True)
class JobName:
    """A job of a cluster: the run that it drives, the attempt that it begins, where that lies."""

    run: str
    attempt: int
    where: str
    """The beginning of the digest of the run folder's address."""
    number: int = 1
    """Which of that name it is: the ones before ended before they began their attempt."""

    def __str__(self) -> str:
        again = f"-{self.number}" if self.number > 1 else ""
        return f"{self.run}-a{self.attempt:04d}-{self.where}{again}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The name that `text` spells, or None."""
        match = _JOB.fullmatch(text)
        return cls(match[1], int(match[2]), match[3], int(match[4] or 1)) if match else None


@dataclass(frozen=True, order=True)
class CheckpointName:
    """A checkpoint's folder: the step that it was taken after, and the attempt that took it."""

    step: int
    attempt: int

    def __str__(self) -> str:
        return f"step-{self.step:08d}-a{self.attempt:04d}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The name, or None if `text` is not one in its only spelling."""
        match = _CHECKPOINT.fullmatch(text)
        name = cls(int(match[1]), int(match[2])) if match else None
        return name if name is not None and str(name) == text else None


@dataclass(frozen=True, order=True)
class SegmentName:
    """A journal segment's file: its first and last step, and the attempt that wrote it."""

    first_step: int
    last_step: int
    attempt: int

    def __str__(self) -> str:
        return f"steps-{self.first_step:08d}-{self.last_step:08d}-a{self.attempt:04d}.jsonl"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The name, or None if `text` is not one in its only spelling."""
        match = _SEGMENT.fullmatch(text)
        name = cls(int(match[1]), int(match[2]), int(match[3])) if match else None
        return name if name is not None and str(name) == text else None


@dataclass(frozen=True, order=True)
class LeaseName:
    """A lease's file: the number of the attempt that it gives the run to."""

    attempt: int

    def __str__(self) -> str:
        return f"{self.attempt:04d}.json"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The name, or None if `text` is not one in its only spelling."""
        match = _LEASE.fullmatch(text)
        name = cls(int(match[1])) if match else None
        return name if name is not None and str(name) == text else None


@dataclass(frozen=True, order=True)
class FenceListName:
    """A fence list's file: the attempt that began when it was written."""

    attempt: int

    def __str__(self) -> str:
        return f"{self.attempt:04d}-seal.json"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The name, or None if `text` is not one in its only spelling."""
        match = _FENCE_LIST.fullmatch(text)
        name = cls(int(match[1])) if match else None
        return name if name is not None and str(name) == text else None


@dataclass(frozen=True, order=True)
class PinName:
    """A pin's place below `pins/`: the checkpoint that it keeps, and who keeps it.

    Raises ValueError for a `who` that is not small letters, digits and '-', at most 100 of them,
    beginning with a letter.
    """

    checkpoint: CheckpointName
    who: str

    def __post_init__(self) -> None:
        if not _WHO.fullmatch(self.who):
            raise ValueError(
                f"{self.who!r} cannot pin a checkpoint: take small letters, digits and '-', "
                "beginning with a letter, at most 100 of them"
            )

    def __str__(self) -> str:
        return f"{self.checkpoint}/{self.who}.json"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The name, or None if `text` is not one in its only spelling."""
        match = _PIN.fullmatch(text)
        checkpoint = CheckpointName.parse(match[1]) if match else None
        return cls(checkpoint, match[2]) if match and checkpoint else None


@dataclass(frozen=True, order=True)
class DecisionName:
    """A decision's file below `decisions/`."""

    model: str
    """The registered model."""
    version: int
    champion: int
    """The number of the champion's entry that the version is compared with; 0: there was none."""

    def __str__(self) -> str:
        return f"{self.model}/v{self.version:08d}-c{self.champion:08d}.json"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The name, or None if `text` is not one in its only spelling."""
        match = _DECISION.fullmatch(text)
        if match is None or not is_model_name(match[1]):
            return None
        name = cls(match[1], int(match[2]), int(match[3]))
        return name if str(name) == text else None


def numbered(number: int) -> str:
    """The name of the document with that number in a log."""
    return f"{number:08d}.json"


def number_of(name: str) -> int | None:
    """The number of a document in a log; None if `name` is not that of one."""
    match = _NUMBERED.fullmatch(name)
    return int(match[1]) if match and numbered(int(match[1])) == name else None


def registered_name(number: int) -> str:
    """The name of a run's note that the event of this number registers one of its checkpoints."""
    return f"registered-{numbered(number)}"


def registered_number(name: str) -> int | None:
    """The number of the event; None if `name` is no `registered_name`."""
    match = _REGISTERED.fullmatch(name)
    return int(match[1]) if match and registered_name(int(match[1])) == name else None
