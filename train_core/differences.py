"""What differs between two checkpoints or two runs: names and numbers, ready for JSON."""

from __future__ import annotations

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
