"""The load of the machine that drives the run: CPU, memory, disk, network and GPUs."""

from __future__ import annotations

from mlflow.system_metrics.metrics.base_metrics_monitor import BaseMetricsMonitor
from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor
from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor


class SystemMetrics:
    """Samples under MLflow's own names, so that MLflow shows them as system metrics.

    MLflow's SystemMetricsMonitor ends for good after one request without an answer. So only its
    measuring parts are used; the mirror sends the samples, and keeps them during an outage.
    """

    def __init__(self) -> None:
        self._monitors: list[BaseMetricsMonitor] = [CPUMonitor(), DiskMonitor(), NetworkMonitor()]
        try:
            self._monitors.append(GPUMonitor())
        except Exception:  # noqa: BLE001 (no library, no driver or no GPU: each raises its own)
            return

    def sample(self) -> dict[str, float]:
        """The load of the machine now."""
        found: dict[str, float] = {}
        for monitor in self._monitors:
            monitor.collect_metrics()
            found |= monitor.aggregate_metrics()
            monitor.clear_metrics()
        return {f"system/{key}": float(value) for key, value in found.items()}
