"""The load of the machine that drives the run: CPU, memory, disk, network and GPUs."""

from __future__ import annotations

from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor


class SystemMetrics:
    """Samples under MLflow's own names, so that MLflow shows them as system metrics.

    MLflow's monitor ends for good when its server once does not answer. So it only measures
    here; the mirror sends, and keeps what an outage held up.
    """

    def __init__(self) -> None:
        self._monitor = SystemMetricsMonitor(run_id=None)

    def sample(self) -> dict[str, float]:
        """What the machine does now."""
        self._monitor.collect_metrics()
        found = self._monitor.aggregate_metrics()
        for monitor in self._monitor.monitors:
            monitor.clear_metrics()
        return {f"system/{key}": float(value) for key, value in found.items()}
