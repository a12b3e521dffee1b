"""The table and the figures of the pipeline benchmark."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

FIRST_EVALUATED = "last checkpoint to first evaluated batch"


def ratios(measured: dict[str, list[float]]) -> dict[str, float]:
    """The figures that the project promises, from medians."""
    median = {name: statistics.median(values) for name, values in measured.items()}
    found = {}
    if "evertrain" in median:
        ours = median["evertrain"]
        found |= {
            "train_vs_stock_ray": ours / median["stock"],
            "train_vs_stock_ray_tuned": ours / median["stock-tuned"],
            "train_vs_stock_ray_same_model": ours / median["stock-model"],
            "train_vs_torchrun": ours / median["torchrun"],
            "train_vs_compute_bound": ours / median["one-batch"],
        }
    if "stock cold, s" in median:
        stock = median["stock cold, s"]
        found |= {
            "overhead_cold": median["flow cold, s"] / stock,
            "overhead_warm": median["flow warm, s"] / stock,
            "evaluate_start_s": max(
                median[f"{FIRST_EVALUATED}, {kind}, s"] for kind in ("cold", "warm")
            ),
        }
    return {name: round(value, 3) for name, value in found.items()}


def table(measured: dict[str, list[float]]) -> Iterator[str]:
    """One line a contender: n, median, spread."""
    yield f"{'contender':44} {'n':>3} {'median':>10} {'min':>10} {'max':>10}"
    for name, values in measured.items():
        yield (
            f"{name:44} {len(values):3} {statistics.median(values):10.2f} "
            f"{min(values):10.2f} {max(values):10.2f}"
        )
