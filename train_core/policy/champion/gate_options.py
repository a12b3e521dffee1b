"""The gate's parameters: what a new model has to show before it becomes champion.

A group of the pipeline's parameters, and the rules by which `gate_decision` decides.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from train_core.policy.champion.model_names import check_model_name
from train_core.policy.options import Options

ModelName = Annotated[str, AfterValidator(lambda name: name and check_model_name(name))]
"""A registered model's name, or nothing."""


class GateOptions(Options):
    """How the best checkpoint of a run is compared with the champion of its model."""

    gate: bool = Field(
        default=True,
        description="Register the best checkpoint, compare it with the champion on the test split, "
        "and make it champion if it is better.",
    )
    registered_model: ModelName = Field(
        default="",
        description="The registered model that it becomes a version of; empty: named as the "
        "workload's class.",
    )
    gate_metric: str = Field(
        default="",
        description="The metric of the test split that decides; empty: the one by which the best "
        "checkpoint was chosen.",
    )
    gate_order: Literal["", "max", "min"] = Field(
        default="",
        description="Whether more of it is better; empty: min for the loss, and else as "
        "monitor_order.",
    )
    min_improvement: float = Field(
        default=0.0,
        description="The whole confidence interval of the improvement has to lie above it.",
    )
    gate_confidence: float = Field(
        default=0.95, gt=0, lt=1, description="The level of that confidence interval."
    )
    gate_minimum: float | None = Field(
        default=None, description="The worst value of the metric that any champion may have."
    )
    max_recall_drop: float | None = Field(
        default=None,
        ge=0,
        description="How much the recall of a class may fall below the champion's.",
    )
    max_latency_ratio: float | None = Field(
        default=None,
        gt=0,
        description="How often the champion's time for a row, and for a batch, may be taken.",
    )
    max_size_ratio: float | None = Field(
        default=None, gt=0, description="How often the champion's bytes the weights may take."
    )
    on_changed_data: Literal["compare", "ask", "keep"] = Field(
        default="compare",
        description="What follows if the test split is not the one on which the champion was "
        "chosen: compare both on the new one, ask a person, or keep the champion.",
    )
    require_approval: bool = Field(
        default=False, description="Let a person approve each promotion."
    )
