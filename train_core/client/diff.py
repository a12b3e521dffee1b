"""Two runs or two checkpoints, compared as `evertrain diff` does.

In the records of two runs, names, times and addresses are ignored. Differences that decide the
numbers count. Those of parameters that may change in a run, and of surroundings, are listed only:
the comparison of the checkpoints shows whether they mattered.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal

from train_core.client.run import Run, folder_of
from train_core.config import TrainConfig
from train_core.differences import Comparison, Kind, RunsComparison, ValueDifference
from train_core.quick_imports import garbage_collection_paused
from train_core.results import Result
from train_core.storage.addresses import find, find_checkpoint
from train_core.storage.records.run_record import RunRecord
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_reports import reported_best

_DATA = {"datasets", "sources", "origin"}
# The digest identifies the data, not the address.
_ADDRESSES = {"url", "uri"}
_SURROUNDINGS = {"fingerprint", "code"}
_ABSENT = object()


class RecordsComparison(Result):
    """The differences between the records of two runs."""

    configuration: list[ValueDifference]
    """Parameters and settings that decide the numbers."""
    data: list[ValueDifference]
    """Samples and digests of the splits, the files of the data, and the first weights."""
    may_change: list[ValueDifference]
    """Parameters that may change in a run, and the pipeline's. They do not count."""
    surroundings: list[ValueDifference]
    """Versions of libraries and code, and the machine. They do not count."""

    @property
    def is_same(self) -> bool:
        """Whether there are no differences that count."""
        return not (self.configuration or self.data)


class Diff(Result):
    """The differences between two runs, or between two checkpoints."""

    a: str
    """The address of the first checkpoint."""
    b: str
    compared: Literal["best", "newest", "named"]
    """Which ones they are: two runs' best ones, or their newest, as one of them has no report that
    says which is best; or those that were named, of a run beside one its best."""
    checkpoints: Comparison
    records: RecordsComparison | None = None
    """Of two runs: configuration, data and surroundings."""
    newest: Comparison | None = None
    """Of two runs: their newest checkpoints, unless those are compared already."""
    unread: list[str] = []
    """Of two runs: why newer checkpoints were not compared. A newer evertrain committed them."""

    @property
    def is_same(self) -> bool:
        """Whether there are no differences that count."""
        compared = (self.records, self.checkpoints, self.newest)
        return not self.unread and all(one.is_same for one in compared if one is not None)


def diff(a: str, b: str, storage: str) -> Diff:
    """Compare two runs, or two checkpoints to the bit: tensors, the rest of the state, metrics.

    `a` and `b` are names of runs in `storage`, RUN/CHECKPOINT, or addresses of either. Like is
    compared with like: two runs' best checkpoints, and the newest ones if one of the runs has no
    report that names its best. Beside a checkpoint a run is its best one. Raises ConfigError if one
    is not there, CheckpointError if a checkpoint is not good. Imports torch.
    """
    named = [find(what, storage) for what in (a, b)]
    are_runs = all(name is None for _, name in named)
    are_reported = are_runs and all(reported_best(folder) for folder, _ in named)
    prefer_best = are_reported or not are_runs
    folder_a, of_a = find_checkpoint(a, storage, prefer_best=prefer_best)
    folder_b, of_b = find_checkpoint(b, storage, prefer_best=prefer_best)
    records = _compare_records(folder_a, folder_b) if are_runs else None
    pairs, unread = [(of_a, of_b)], list[str]()
    if are_runs:
        scan_a, scan_b = folder_a.scan(), folder_b.scan()
        unread = [*scan_a.newer.values(), *scan_b.newer.values()]
        newest_a, newest_b = scan_a.newest or of_a, scan_b.newest or of_b
        if (newest_a.name, newest_b.name) != (of_a.name, of_b.name):
            pairs.append((newest_a, newest_b))
    with garbage_collection_paused():
        from train_core.tools.compare import compare_checkpoints
    checkpoints, *newest = [
        compare_checkpoints(folder_a, in_a, folder_b, in_b) for in_a, in_b in pairs
    ]
    return Diff(
        a=folder_a.store.uri(of_a.key),
        b=folder_b.store.uri(of_b.key),
        compared="named" if not are_runs else "best" if are_reported else "newest",
        checkpoints=checkpoints,
        records=records,
        newest=newest[0] if newest else None,
        unread=unread,
    )


def compare_runs(a: Run | RunFolder, b: Run | RunFolder) -> RunsComparison:
    """The first that differs between two runs. Imports torch.

    Raises CheckpointError if one cannot be read.
    """
    with garbage_collection_paused():
        from train_core.tools import compare
    return compare.compare_runs(folder_of(a), folder_of(b))


def _compare_records(a: RunFolder, b: RunFolder) -> RecordsComparison:
    """Compare two runs as their folders record them. Raises as `RunFolder.record`."""
    asked_a, asked_b = a.newest_request(), b.newest_request()
    config = _differences(asked_a.config.model_dump(), asked_b.config.model_dump())
    fixed = asked_a.config.differences(asked_b.config).keys()
    decides = {name.partition(".")[0] for name in fixed}
    record_a, record_b = a.record(), b.record()
    records = [record.model_dump(mode="json") for record in (record_a, record_b)]
    data_a, data_b = (_only(_DATA, one) for one in records)
    around_a, around_b = (_only(_SURROUNDINGS, one) for one in records)
    return RecordsComparison(
        configuration=[one for one in config if _field(one) in decides],
        data=[
            one
            for one in _differences(data_a, data_b)
            if one.name.rpartition(".")[2] not in _ADDRESSES
        ]
        + _differences(_files(a, record_a), _files(b, record_b)),
        may_change=[one for one in config if _field(one) not in decides]
        + _differences({"pipeline": asked_a.pipeline}, {"pipeline": asked_b.pipeline}),
        surroundings=_differences(around_a, around_b),
    )


def _files(folder: RunFolder, record: RunRecord) -> dict[str, Any]:
    """The digest of each file of the data, by its source and its name."""
    found = folder.files_of(record)
    sources = found.sources if found else {}
    return {
        f"{name}: {file.name}": file.digest
        for name, source in sources.items()
        for file in source.files
    }


def _only(names: Collection[str], record: Mapping[str, Any]) -> dict[str, Any]:
    """Some entries of run.json; an older evertrain may have written only some of them."""
    return {name: value for name, value in record.items() if name in names}


def _field(difference: ValueDifference) -> str:
    """The field of the configuration that a difference is in."""
    name = difference.name.partition(".")[0]
    assert name in TrainConfig.model_fields
    return name


def _differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[ValueDifference]:
    of_a, of_b = dict(_leaves(a)), dict(_leaves(b))
    found = []
    for name in dict.fromkeys([*of_a, *of_b]):
        in_a, in_b = of_a.get(name, _ABSENT), of_b.get(name, _ABSENT)
        if in_a != in_b:
            kind: Kind = "values"
            if in_a is _ABSENT or in_b is _ABSENT:
                kind = "only in B" if in_a is _ABSENT else "only in A"
            shown_a, shown_b = (None if one is _ABSENT else one for one in (in_a, in_b))
            found.append(ValueDifference(name=name, kind=kind, a=shown_a, b=shown_b))
    return found


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every plain value or list of a nested mapping, by its path; what is None is not there."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    elif value is not None:
        yield path, value
