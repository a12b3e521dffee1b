"""What differs between two checkpoints or two runs: names and numbers, ready for JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import JsonValue

from train_core.results import Result

Kind = Literal["only in A", "only in B", "shape", "dtype", "values"]


class TensorDifference(Result):
    """A tensor that is not the same in A and in B."""

    name: str
    """Its path in the state, as `model/0.weight`."""
    kind: Kind
    a: JsonValue
    """The first differing element's value; of another shape or type, what the tensor is."""
    b: JsonValue
    index: list[int] = []
    """Where the first differing element is."""
    num_elements: int = 0
    num_different: int = 0
    """Elements whose bits differ."""
    max_difference: float | None = None
    """The largest absolute difference; None if one is not finite."""


class ValueDifference(Result):
    """A number, a string or a metric that is not the same in A and in B."""

    name: str
    kind: Kind
    a: JsonValue
    b: JsonValue


class Comparison(Result):
    """All that differs between the states of two checkpoints."""

    num_tensors: int
    """Tensors in A or B."""
    tensors: list[TensorDifference]
    values: list[ValueDifference]
    """Of the state that is no tensor: parameter groups, schedule, position, sums."""
    metrics: list[ValueDifference]
    """Of the newest value of each metric."""

    @property
    def is_same(self) -> bool:
        """Whether nothing differs."""
        return not (self.tensors or self.values or self.metrics)


class MetricDifference(Result):
    """The first entry of two journals that is not the same."""

    step: int
    name: str
    a: JsonValue
    b: JsonValue


class FirstDifference(Result):
    """The first that differs between two trainings, of all that a step reads and changes."""

    step: int
    """How many steps were done after it."""
    name: str
    """`batch/SHARD/PASS/NAME`, `loss/SHARD/PASS`, or a path in the state, as `model/0.weight`."""

    @property
    def kind(self) -> str:
        """`batch`, `loss`, `model` or `optimizer`."""
        return self.name.partition("/")[0]

    @property
    def what(self) -> str:
        """In words."""
        kind, _, rest = self.name.partition("/")
        shard, _, name = rest.partition("/")
        if kind == "loss":
            return f"the loss of shard {shard}"
        if kind == "batch":
            return f"{name.partition('/')[2]!r} in the batch of shard {shard}"
        return self.name


class RunsComparison(Result):
    """The first that differs between two runs of the same training, by its step."""

    steps: list[int]
    """Of the checkpoints that both have, up to the first that differs."""
    num_entries: int
    """Journal entries that were compared."""
    num_validations: int
    """Those of them that hold validation metrics."""
    metric: MetricDifference | None
    state: Comparison | None
    """Of the newest of `steps`, if it differs."""

    @property
    def is_same(self) -> bool:
        """Whether the runs are the same to the bit, times and rates aside."""
        return self.metric is None and self.state is None


_BY_NAME = {"model": "update", "optimizer": "update"}
_KEPT_OUTSIDE = (
    "Batches, model and optimizer are the same: what differs is kept outside of them. See "
    "`state_dict` and `load_state_dict` of a workload (docs/workloads.md)."
)
_KEPT_IN_THE_PROCESS = (
    "All processes anew give the same, and those that live on do not: something stays in a process "
    "that no `state_dict` has, as a module's global or an attribute of a class. Have it in the "
    "workload's `state_dict`, or in the model."
)
_BEFORE_THE_KILL = (
    "They differ before the kill: two trainings from the same seed are not the same. The workload "
    "draws from a generator that evertrain does not seed (`default_rng()`, `os.urandom`), or reads "
    "the time or the process."
)
_AFTER_THE_KILL = {
    "batch": "The batch is another one: `dataset` or `prepare` depends on what the process did "
    "before. A sample may depend on its index and on `random` alone.",
    "loss": "The batch is the same, and the loss is not: `forward`, `loss` or `after_step` "
    "keeps something outside of the model's state. It belongs into a buffer, or into the "
    "workload's `state_dict` and `load_state_dict`.",
    "update": "Batch and loss are the same, and the update is not: the optimizer, `after_step`, or "
    "what runs in the backward pass (a hook, an autograd.Function) keeps something outside of "
    "`state_dict`.",
}
_NOT_PLAIN = {
    "batch": "The batch is another one: `dataset` or `prepare` depends on which samples the "
    "process has read before. A sample may depend on its index and on `random` alone.",
    "loss": "The batch is the same, and the loss is not: `forward` or `loss` depends on the passes "
    "before it in the same process, so that the number of workers would count, by something that "
    "is no buffer of the model: an attribute, a global, or a parameter that `forward` changes "
    "through `.data`.",
    "update": "Batch and loss are the same, and the update is not: a gradient (a hook, an "
    "autograd.Function), or what the optimizer or `after_step` makes of it, depends on more than "
    "the step. If nothing of yours does so, it is a fault of evertrain's: please report it.",
}


class ResumeVerdict(Result):
    """Whether a workload is trained and resumed exactly, and where it first is not."""

    identical: bool
    """Whether the killed run ended as the undisturbed one."""
    workload: str
    workers: int
    workers_after: int
    killed_after: int
    """Steps done at the kill."""
    resumed_after: int
    """The step of the checkpoint that the run went on from."""
    comparison: RunsComparison
    resumed_differs: FirstDifference | None
    """Where the killed run first differs from the undisturbed one, also before the kill."""
    in_place: RunsComparison | None
    """How the run ended of which one rank was killed; None: there was none."""
    in_place_differs: FirstDifference | None
    """Where that run first differs from the undisturbed one."""
    not_in_place: str
    """Why no rank was killed while others train on; empty: one was."""
    plain_differs: FirstDifference | None
    """Where the training in plain PyTorch first differs from the undisturbed run."""
    not_plain: str
    """Why nothing was trained in plain PyTorch; empty: it was."""

    @property
    def is_exact(self) -> bool:
        """Whether nothing differs, as far as it was compared."""
        differing = (self.resumed_differs, self.in_place_differs, self.plain_differs)
        is_same_in_place = self.in_place is None or self.in_place.is_same
        return self.identical and is_same_in_place and not any(differing)

    @property
    def cause(self) -> str:
        """What the first difference says about its cause; empty if nothing differs."""
        found, plain = self.resumed_differs, self.plain_differs
        # What one pass leaves to the next is there from the beginning; a resume only loses it.
        is_older = found and plain and plain.step < found.step
        if found and not is_older:
            if found.step <= self.resumed_after:
                return _BEFORE_THE_KILL
            return _AFTER_THE_KILL[_BY_NAME.get(found.kind, found.kind)]
        if plain:
            return _NOT_PLAIN[_BY_NAME.get(plain.kind, plain.kind)]
        if not self.identical:
            return _KEPT_OUTSIDE
        return "" if self.is_exact else _KEPT_IN_THE_PROCESS


StepDigests = Mapping[int, Mapping[str, str]]
"""The digests of what each step read and changed, by the number of steps done after it."""
_ORDER = ("batch", "loss", "model", "optimizer")


def read_digests(*files: Path) -> StepDigests:
    """What the ranks of a training wrote step by step, the newest of what several files have."""
    found: dict[int, dict[str, str]] = {}
    for entry in (json.loads(line) for file in files for line in file.read_text().splitlines()):
        found.setdefault(entry["step"], {}).update(entry["digests"])
    return found


def first_difference(a: StepDigests, b: StepDigests) -> FirstDifference | None:
    """The first that is not the same, of the steps that both have."""
    for step in sorted(a.keys() & b.keys()):
        differing = (
            FirstDifference(step=step, name=name)
            for name in dict.fromkeys([*a[step], *b[step]])
            if a[step].get(name) != b[step].get(name)
        )
        # A step's batches come before what is computed of them.
        if first := min(differing, key=lambda one: _ORDER.index(one.kind), default=None):
            return first
    return None
