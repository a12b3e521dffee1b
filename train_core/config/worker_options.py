"""With how many workers a training runs, on what, and where.

One of the groups of parameters; `config/__init__.py` says in which of them a new one belongs.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from train_core.config.json_text import object_of
from train_core.policy.options import MAY_CHANGE, Options

LOCAL = "local"
"""The `ray_address` of a Ray that is started for the run."""


class WorkerOptions(Options):
    """The workers, what each of them has, and the cluster that they run on."""

    num_workers: int = Field(
        default=1,
        ge=1,
        description="Worker processes (ranks). With min_workers, or as MIN,MAX on the command "
        "line: the maximum.",
        json_schema_extra=MAY_CHANGE,
    )
    min_workers: int = Field(
        default=0,
        ge=0,
        description="The minimum of workers, if the training is to use as many as there is room "
        "for, up to num_workers, as nodes join and leave; 0: always num_workers.",
        json_schema_extra=MAY_CHANGE,
    )
    num_shards: int = Field(
        default=0,
        ge=0,
        description="Shards of a batch, fixed for the run and at least num_workers; "
        "0: num_workers of its start.",
    )
    cpus_per_worker: float = Field(
        default=1,
        gt=0,
        description="CPUs that Ray reserves for each worker.",
        json_schema_extra=MAY_CHANGE,
    )
    gpus_per_worker: float | None = Field(
        default=None,
        ge=0,
        description="GPUs that Ray reserves for each worker; above 0 trains on CUDA with nccl. "
        "Unset: as the run began; a new run gets one for each worker, if there are enough.",
        json_schema_extra=MAY_CHANGE,
    )
    spares: int | None = Field(
        default=None,
        ge=0,
        description="Processes, without GPUs, that wait to take the place of a worker that dies, "
        "on each node with workers. Each takes the memory of a worker with its data. Unset: one "
        "with ray_address local, if it leaves 2 GiB of memory and the training goes on for a "
        "minute; else none.",
        json_schema_extra=MAY_CHANGE,
    )
    deterministic: bool = Field(
        default=True,
        description="On GPUs, and on CPUs with several threads_per_worker, use deterministic "
        "algorithms only, so that a resume is exact.",
    )
    threads_per_worker: int = Field(
        default=1,
        ge=1,
        description="torch's threads in each worker; another number gives other bits.",
    )
    placement_strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = Field(
        default="PACK",
        description="How Ray places workers on nodes.",
        json_schema_extra=MAY_CHANGE,
    )
    ray_address: str = Field(
        default=LOCAL,
        description="'local' starts Ray for this run; else the address of a running cluster, "
        "http://head:8265 or head:6379, where a job trains that outlives this program.",
        json_schema_extra=MAY_CHANGE,
    )
    runtime_env: dict[str, Any] = Field(
        default_factory=dict,
        description="Ray's runtime environment of the workers, a JSON object. Prefect shows it: "
        "secrets belong into the environment.",
        json_schema_extra=MAY_CHANGE,
    )
    strict: bool = Field(
        default=False,
        description="Refuse to resume if other library versions or hardware may change the bits.",
        json_schema_extra=MAY_CHANGE,
    )

    @model_validator(mode="before")
    @classmethod
    def _split_range(cls, given: Any) -> Any:
        """`num_workers=(2, 4)`, or `"2,4"` on a command line, is a least and a most."""
        if not isinstance(given, dict):
            return given
        asked = given.get("num_workers")
        if isinstance(asked, str) and "," in asked:
            asked = asked.strip("[]()").split(",")
        if not isinstance(asked, (list, tuple)):
            return given
        if len(asked) != 2:
            raise ValueError(f"num_workers is a number or MIN,MAX, got {given['num_workers']!r}")
        return given | {"min_workers": asked[0], "num_workers": asked[1]}

    @field_validator("runtime_env", mode="before")
    @classmethod
    def _parse_runtime_env(cls, value: object) -> object:
        return object_of(value)

    @field_validator("runtime_env")
    @classmethod
    def _check_runtime_env(cls, value: dict[str, Any]) -> dict[str, Any]:
        """Check the entries that evertrain reads; Ray checks the others."""
        if not isinstance(value.get("working_dir", ""), str):
            raise ValueError("working_dir in it is a path or a URL")  # noqa: TRY004 (pydantic's)
        if not _are_texts(value.get("py_modules", [])):
            raise ValueError("py_modules in it is a list of paths or URLs")
        variables = value.get("env_vars", {})
        if not (isinstance(variables, dict) and _are_texts([*variables, *variables.values()])):
            raise ValueError("env_vars in it is an object whose values are texts")
        return value

    @model_validator(mode="after")
    def _check_workers(self) -> Self:
        if self.min_workers > self.num_workers:
            raise ValueError(
                f"min_workers is {self.min_workers}, more than num_workers, {self.num_workers}"
            )
        if self.num_shards and self.num_shards < self.num_workers:
            raise ValueError(
                f"num_workers is {self.num_workers} but num_shards is {self.num_shards}: "
                "a worker computes at least one shard, so ask for fewer workers or more shards"
            )
        return self

    @property
    def shards(self) -> int:
        """The number of shards of every batch."""
        return self.num_shards or self.num_workers

    @property
    def fewest_workers(self) -> int:
        """The number of workers without which it does not train."""
        return self.min_workers or self.num_workers

    @property
    def uses_gpu(self) -> bool:
        """Whether workers compute on a GPU."""
        return bool(self.gpus_per_worker)


def loopback_interface() -> str:
    """The name of the network interface by which this machine reaches itself, and nobody else."""
    # A model that MLflow serves is loaded without it.
    import psutil

    names = (
        str(name)
        for name, addresses in psutil.net_if_addrs().items()
        if any(one.address == "127.0.0.1" for one in addresses)
    )
    return next(names, "lo")


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def available_cpus(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """The CPUs that a local Ray has: those of the affinity, or fewer by a container's quota.

    It reads the quota where Ray's own count does, in version 1 and 2 of control groups, and rounds
    it down as Ray does; but a quota of less than one CPU counts as one, so that something can run.
    """
    # macOS has no affinity.
    allowed = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    quota = _cpu_quota(cgroup)
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def _cpu_quota(cgroup: Path) -> float | None:
    """How many CPUs' time the control group may take; None if it has no limit."""
    one_file, quota_file = cgroup / "cpu.max", cgroup / "cpu/cpu.cfs_quota_us"
    try:
        if quota_file.exists():
            quota, period = quota_file.read_text(), (cgroup / "cpu/cpu.cfs_period_us").read_text()
        else:
            quota, period = one_file.read_text().split()
        # "max" in version 2, -1 in version 1: no limit.
        return None if quota == "max" or int(quota) <= 0 else int(quota) / int(period)
    except (OSError, ValueError):
        return None
