"""Ray itself: starting it for this process, and seeing that it lives."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from train_core.cluster.lent import lent_places, runtime_env
from train_core.config import LOCAL, TrainConfig, available_cpus, loopback_interface
from train_core.errors import ConfigError
from train_core.requests import LentPlaces
from train_core.search_path import VARIABLE, environment

if TYPE_CHECKING:
    from ray.job_config import JobConfig

# For whatever runs on it.
_ENVIRONMENT = {
    # All lines of all workers are in the log.
    "RAY_DEDUP_LOGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}
_LOCAL_ENVIRONMENT = {
    # Its import lets each worker find the user's modules (`search_path.py`).
    "RAY_preload_python_modules": "train_core",
    # Nobody starts the head of a local Ray again; Ray would wait for a minute.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
    # Every 5 s it would look at all processes, for a dashboard that does not run.
    "REPORTER_UPDATE_INTERVAL_MS": "60000",
    # The node's address is the loopback, on which alone Ray's processes listen then. (Ray turns
    # one that it is given as an argument into the machine's own.)
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}

_LONGEST_SOCKET = "/ray/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
_SOCKET_BYTES = 107
"""The longest path of a socket on Linux."""


@dataclass(frozen=True)
class RaySettings:
    """What a launcher wants of the Ray that it runs on, beyond Ray's defaults."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that Ray reads; one that is set already stays."""
    object_store_bytes: int | None = None
    """The memory for objects of a local Ray; None: as Ray decides."""


POOL_SETTINGS = RaySettings(
    environment={
        # Ray's default gives way to every other process, also to those that only watch the
        # training.
        "RAY_worker_niceness": "0",
        # The pool itself tells its workers which GPUs they see.
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    },
    # Nothing is put there but a task's results; its memory is reserved at the start, 1 s for 7 GB.
    object_store_bytes=256 * 2**20,
)
"""What the pool of workers wants of Ray."""


def check_folders() -> None:
    """Raise ConfigError if a Ray of this machine could not write into its folders."""
    named = next((one for one in ("RAY_TMPDIR", "TMPDIR") if os.environ.get(one)), "")
    folder = os.environ.get(named, "/tmp")  # noqa: S108 (Ray's own default)
    if (excess := len(os.fsencode(folder + _LONGEST_SOCKET)) - _SOCKET_BYTES) > 0:
        raise ConfigError(
            f"{named} is too long for the paths of Ray's sockets: {folder}. Set RAY_TMPDIR to a "
            f"folder whose path is at least {excess} characters shorter, as /tmp"
        )
    if os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH"):
        return
    home = Path("~/.ray").expanduser()
    try:
        home.mkdir(parents=True, exist_ok=True)
        if not (home / "auth_token").exists() and not os.access(home, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise ConfigError(
            f"Ray keeps its token in {home}, which cannot be written ({error.strerror}): set HOME "
            "to a folder that can be written"
        ) from error


def load_ray(config: TrainConfig, settings: RaySettings) -> None:
    """Import Ray, with what it reads from the environment as it is imported and later."""
    local = {}
    if config.ray_address == LOCAL and lent_places() is None:
        # Its workers find the modules that this process finds.
        found_in = {VARIABLE: environment()[VARIABLE]}
        local = _LOCAL_ENVIRONMENT | _on_loopback() | found_in
    for name, value in (_ENVIRONMENT | local | dict(settings.environment)).items():
        os.environ.setdefault(name, value)
    logger = "ray._private.authentication.authentication_token_setup"
    logging.getLogger(logger).addFilter(_is_news)
    import_module("ray")


def _on_loopback() -> dict[str, str]:
    """What makes gloo and nccl connect the workers by the loopback, also of a training function."""
    name = loopback_interface()
    return {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name}


def _is_news(record: logging.LogRecord) -> bool:
    # Ray logs it at each start: its processes authenticate each other, and nobody need do anything.
    return not str(record.msg).startswith("Token authentication is enabled")


def start_ray(config: TrainConfig, settings: RaySettings) -> None:
    """Start Ray for this process, or connect to the cluster whose job this process is.

    `settings` are those of the launcher that will run on it.
    """
    load_ray(config, settings)
    import ray

    if ray.is_initialized():
        return
    if places := lent_places():
        _join(places, config)
        return
    if config.ray_address == LOCAL:
        _check_runtime_env(config)
        with _without_dashboard_process():
            ray.init(
                address="local",
                num_cpus=available_cpus(),
                include_dashboard=False,
                object_store_memory=settings.object_store_bytes,
                runtime_env=config.runtime_env or None,
                logging_level=logging.WARNING,
                job_config=_job_config(),
            )
        return
    # This process is a job of that cluster: it has the job's environment already.
    ray.init(address=os.environ["RAY_ADDRESS"], logging_level=logging.WARNING)


@contextmanager
def _without_dashboard_process() -> Iterator[None]:
    """Have Ray start no process for its dashboard in this block, nor wait for one.

    Without a dashboard it starts one all the same, for statistics that are switched off.
    """
    from ray._private.node import Node

    start = Node.start_api_server
    Node.start_api_server = lambda *_, **__: None  # type: ignore[method-assign]  # no option does it
    try:
        yield
    finally:
        Node.start_api_server = start  # type: ignore[method-assign]


def _join(places: LentPlaces, config: TrainConfig) -> None:
    """Join the Ray that has lent the workers' places."""
    import ray

    _check_runtime_env(config)
    ray.init(
        address=places.address,
        logging_level=logging.WARNING,
        runtime_env=runtime_env(places, config.runtime_env, environment()[VARIABLE]),
    )


def _job_config() -> JobConfig:
    """Ray's, without the current directory, which it would have its workers look into first."""
    from ray.job_config import JobConfig

    class Config(JobConfig):
        @property
        def _py_driver_sys_path(self) -> list[str]:
            return []

        @_py_driver_sys_path.setter
        def _py_driver_sys_path(self, folders: list[str]) -> None:
            """Workers get the user's folders as every process of ours does."""

    return Config()


def _check_runtime_env(config: TrainConfig) -> None:
    """Raise ConfigError if Ray cannot read the runtime environment."""
    from ray.runtime_env import RuntimeEnv

    try:
        RuntimeEnv(**config.runtime_env)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"runtime_env is refused by Ray: {error}") from error


def driver_host(config: TrainConfig) -> str:
    """The address of this machine at which workers reach the driver's store."""
    import ray

    from train_core.rank.distributed.rendezvous import LOOPBACK

    is_here = config.ray_address == LOCAL and lent_places() is None
    return LOOPBACK if is_here else str(ray.util.get_node_ip_address())


def dead_ray() -> str:
    """The name of the dead process, if the local Ray has lost one that it cannot run without.

    Empty while all of them live, and if this process has started no Ray.
    """
    from ray._private import worker

    node = worker._global_node  # noqa: SLF001 (nothing public tells; errors come late)
    ended: list[str] = [kind for kind, _ in node.dead_processes()] if node else []
    return next((kind for kind in ended if kind in ("gcs_server", "raylet")), "")
