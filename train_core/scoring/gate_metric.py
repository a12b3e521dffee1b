"""The metric by which a gate decides."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from train_core.config import TrainConfig
from train_core.errors import ConfigError
from train_core.policy.champion.gate_options import GateOptions
from train_core.policy.checkpoints.selection import Order
from train_core.policy.metric_names import LOSS, TEST, split_and_name
from train_core.rank.metrics.evaluation_loop import check_order, split_metrics
from train_core.scoring.comparison import check_adds_up
from train_core.workload import Workload

_log = logging.getLogger(__name__)


def check_gate(workload: Workload[Any], config: TrainConfig, options: GateOptions) -> None:
    """Raise ConfigError if the workload's models cannot be compared by these options."""
    metrics = split_metrics(workload)
    name, order = metric_of(config, options, list(metrics))
    check_order(name, metrics[name], order, "gate_order")
    if name == LOSS and not options.gate_metric and not config.monitor.endswith(LOSS):
        _log.warning(
            "no evaluation measures %s: the gate decides by the loss, unless gate_metric names "
            "another metric",
            config.monitor,
        )
    check_adds_up(name, metrics[name])
    if options.max_recall_drop is not None and not workload.class_names:
        raise ConfigError(
            f"max_recall_drop {options.max_recall_drop:g} needs classes: {config.workload} has no "
            "class_names"
        )


def _measured(metric: str, names: Sequence[str]) -> str:
    """The measured metric of that name; a training function may report it as `eval/accuracy`."""
    name = split_and_name(metric)[1]
    while name not in names and "/" in name:
        name = name.partition("/")[2]
    return name if name in names else ""


def metric_of(config: TrainConfig, options: GateOptions, names: Sequence[str]) -> tuple[str, Order]:
    """The short name of the metric that decides, and its order.

    Without `gate_metric` it is the monitored one, or the loss if that is of no evaluation. Raises
    ConfigError for one that an evaluation does not measure.
    """
    split, wanted = split_and_name(options.gate_metric or config.monitor)
    if options.gate_metric and (wanted not in names or split not in ("", TEST)):
        raise ConfigError(
            f"gate_metric {options.gate_metric!r} is not measured on the test split: "
            f"{config.workload} gives {', '.join(names)}"
        )
    monitored = _measured(config.monitor, names)
    if not options.gate_metric:
        wanted = monitored or LOSS
    is_monitored = wanted == monitored
    usual: Order = "min" if wanted == LOSS else "max"
    return wanted, options.gate_order or (config.order if is_monitored else usual)
