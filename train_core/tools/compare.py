"""Comparing two states, or two runs, bit by bit: same bits are the same, also of a NaN."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor

from train_core.differences import (
    Comparison,
    Kind,
    MetricDifference,
    RunsComparison,
    TensorDifference,
    ValueDifference,
)
from train_core.errors import CheckpointError
from train_core.policy.metric_names import VALIDATION, is_of
from train_core.rank.checkpoint.reader import load_state
from train_core.storage.records.journal import Entry, read_segments
from train_core.storage.run_folder import Commit, RunFolder
from train_core.storage.verification.checkpoints import check_files

# Seconds belong to the machine and the hour.
_IGNORED = {"progress/elapsed_s"}
_METRICS = "progress/metrics/"
_ABSENT = object()


def compare_states(a: dict[str, Any], b: dict[str, Any]) -> Comparison:
    """All that differs between two states, in the order of A."""
    of_a, of_b = dict(leaves(a)), dict(leaves(b))
    tensors: list[TensorDifference] = []
    values: list[ValueDifference] = []
    metrics: list[ValueDifference] = []
    num_tensors = 0
    for name in dict.fromkeys([*of_a, *of_b]):
        in_a, in_b = of_a.get(name, _ABSENT), of_b.get(name, _ABSENT)
        if isinstance(in_a, Tensor) or isinstance(in_b, Tensor):
            num_tensors += 1
            if found := _compare_tensors(name, in_a, in_b):
                tensors.append(found)
        elif name not in _IGNORED and _text(in_a) != _text(in_b):
            of_metrics = name.startswith(_METRICS)
            difference = ValueDifference(
                name=name.removeprefix(_METRICS),
                kind=_kind(in_a, in_b),
                a=_json(in_a),
                b=_json(in_b),
            )
            (metrics if of_metrics else values).append(difference)
    return Comparison(num_tensors=num_tensors, tensors=tensors, values=values, metrics=metrics)


def compare_checkpoints(
    folder_a: RunFolder, a: Commit, folder_b: RunFolder, b: Commit
) -> Comparison:
    """All that differs between two checkpoints. Raises CheckpointError if one is not good."""
    return compare_states(_state_of(folder_a, a), _state_of(folder_b, b))


def _state_of(folder: RunFolder, checkpoint: Commit) -> dict[str, Any]:
    """The state that a checkpoint holds; of a training function's, the digests of its files."""
    manifest = checkpoint.manifest
    if not (manifest.reported or manifest.is_function_end):
        return load_state(folder.store, checkpoint)
    check_files(folder.store, checkpoint.key, manifest.files)
    digests = {entry.name: entry.digest for entry in manifest.files}
    return {**digests, "progress": {"metrics": dict(manifest.metrics)}}


def compare_runs(a: RunFolder, b: RunFolder) -> RunsComparison:
    """The first that differs between two runs: in their journals, and in a state of both.

    Raises CheckpointError if they share no step's checkpoint, or one is not good.
    """
    of_a, of_b = ({c.step: c for c in run.checkpoints()} for run in (a, b))
    shared = sorted(of_a.keys() & of_b.keys())
    if not shared:
        raise CheckpointError(f"{a.url} and {b.url} have no checkpoint of the same step")
    entries_a, entries_b = _journal(a), _journal(b)
    state, steps = None, []
    for step in shared:
        steps.append(step)
        found = compare_checkpoints(a, of_a[step], b, of_b[step])
        if not found.is_same:
            state = found
            break
    return RunsComparison(
        steps=steps,
        num_entries=len(entries_a),
        num_validations=sum(
            any(is_of(VALIDATION, name) for name in entry.metrics) for entry in entries_a
        ),
        metric=_first_difference(entries_a, entries_b),
        state=state,
    )


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every tensor and plain value of a nested state, by its path; an empty one is a value."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from leaves(item, (*path, str(key)))
    elif isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        yield "/".join(path), torch.from_numpy(value.copy())
    elif isinstance(value, deque) and value.maxlen is not None:
        yield from leaves({"maxlen": value.maxlen, "elements": list(value)}, path)
    elif isinstance(value, (list, tuple, deque)) and value:
        for index, item in enumerate(value):
            yield from leaves(item, (*path, str(index)))
    else:
        yield "/".join(path), value


def _compare_tensors(name: str, a: Any, b: Any) -> TensorDifference | None:
    """How they differ, if they do; one of them may be absent or no tensor."""
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return TensorDifference(name=name, kind=_kind(a, b), a=_json(a), b=_json(b))
    if a.shape != b.shape or a.dtype != b.dtype:
        kind: Kind = "shape" if a.shape != b.shape else "dtype"
        return TensorDifference(name=name, kind=kind, a=_json(a), b=_json(b))
    # Bits, not numbers: NaN is the same as itself, and -0.0 is not 0.0.
    flat_a, flat_b = a.reshape(-1), b.reshape(-1)
    bits_a, bits_b = flat_a.view(torch.uint8), flat_b.view(torch.uint8)
    if torch.equal(bits_a, bits_b):
        return None
    differs = (bits_a != bits_b).view(a.numel(), -1).any(dim=1)
    first = int(differs.nonzero()[0])
    largest = float((_wide(flat_a[differs]) - _wide(flat_b[differs])).abs().max())
    return TensorDifference(
        name=name,
        kind="values",
        a=_json(flat_a[first].item()),
        b=_json(flat_b[first].item()),
        index=[int(i) for i in np.unravel_index(first, a.shape)],
        num_elements=a.numel(),
        num_different=int(differs.sum()),
        max_difference=largest if math.isfinite(largest) else None,
    )


def _journal(run: RunFolder) -> list[Entry]:
    """The journal that the newest checkpoint covers."""
    newest = run.newest()
    assert newest is not None, "runs without checkpoints are not compared"
    return list(read_segments(run.store, newest.manifest.journal))


def _first_difference(a: list[Entry], b: list[Entry]) -> MetricDifference | None:
    """The oldest entry's first metric that is not the same."""
    for in_a, in_b in zip_longest(a, b):
        if in_a is None or in_b is None or in_a.step != in_b.step:
            steps = [entry.step if entry else None for entry in (in_a, in_b)]
            first = min(step for step in steps if step is not None)
            return MetricDifference(step=first, name="step of the entry", a=steps[0], b=steps[1])
        for name in dict.fromkeys([*in_a.metrics, *in_b.metrics]):
            was, now = in_a.metrics.get(name, _ABSENT), in_b.metrics.get(name, _ABSENT)
            if _text(was) != _text(now):
                return MetricDifference(step=in_a.step, name=name, a=_json(was), b=_json(now))
    return None


def _kind(a: Any, b: Any) -> Kind:
    if a is _ABSENT:
        return "only in B"
    return "only in A" if b is _ABSENT else "values"


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.is_complex() else tensor.double()


def _text(value: Any) -> str:
    """Different for all values that differ: 1 and 1.0, 0.0 and -0.0."""
    return "" if value is _ABSENT else json.dumps(value, default=_described)


def _described(value: Any) -> str:
    """A value that JSON has no word for; a set in any order of its elements."""
    if isinstance(value, (set, frozenset)):
        return f"{type(value).__name__} {sorted(map(repr, value))}"
    return f"{type(value).__name__} {value!r}"


def _json(value: Any) -> Any:
    """A value, or what a tensor is, as JSON can say it."""
    if value is _ABSENT:
        return None
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    if isinstance(value, complex) or (isinstance(value, float) and not math.isfinite(value)):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str, dict, list, tuple)):
        return value
    return _described(value)
