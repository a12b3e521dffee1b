"""Ray itself: starting it for this process, and seeing that it lives."""

from __future__ import annotations

import logging
import os
from importlib import import_module

from train_core.config import LOCAL, TrainConfig, available_cpus

_ENVIRONMENT = {
    # Ray's default gives way to every other process, also to those that only watch the training.
    "RAY_worker_niceness": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
_LOCAL_ENVIRONMENT = {
    # Nobody starts the head of a local Ray again; Ray would wait for a minute.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
    # Every 5 s it would look at all processes, for a dashboard that does not run.
    "REPORTER_UPDATE_INTERVAL_MS": "60000",
}
# Nothing is put there but a task's results; its memory is reserved at the start, 1 s for 7 GB.
_OBJECT_STORE_BYTES = 256 * 2**20


def load_ray(config: TrainConfig) -> None:
    """Import Ray, with what it reads from the environment as it is imported and later."""
    environment = _ENVIRONMENT | (_LOCAL_ENVIRONMENT if config.ray_address == LOCAL else {})
    for name, value in environment.items():
        os.environ.setdefault(name, value)
    told_by = "ray._private.authentication.authentication_token_setup"
    logging.getLogger(told_by).addFilter(_is_news)
    import_module("ray")


def _is_news(record: logging.LogRecord) -> bool:
    # Said at each start: Ray's processes ask each other for a token, and there is nothing to do.
    return not str(record.msg).startswith("Token authentication is enabled")


def start_ray(config: TrainConfig) -> None:
    """Start Ray for this process, or connect to the cluster whose job this process is."""
    load_ray(config)
    import ray

    if ray.is_initialized():
        return
    if config.ray_address == LOCAL:
        ray.init(
            address="local",
            num_cpus=available_cpus(),
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE_BYTES,
            runtime_env=config.runtime_env or None,
            logging_level=logging.WARNING,
        )
        return
    # This process is a job of that cluster: it has the job's environment already.
    ray.init(address=os.environ["RAY_ADDRESS"], logging_level=logging.WARNING)


def dead_ray() -> str:
    """Which process of the Ray that this process has started died, without which it is none.

    Empty as long as all of them live, or if this process has started none.
    """
    from ray._private import worker

    node = worker._global_node  # noqa: SLF001 (nothing public tells; errors come late)
    ended: list[str] = [kind for kind, _ in node.dead_processes()] if node else []
    return next((kind for kind in ended if kind in ("gcs_server", "raylet")), "")
