"""Ray: starting it, and placing the training's workers on it with Ray Train.

Ray Train places the workers, forms the process group and watches them. Checkpoints are
evertrain's own: Ray is told of the newest committed one at the end of an epoch, and never
uploads, deletes or recovers one.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from train_core.config import LOCAL, TrainConfig
from train_core.driver import available_cpus
from train_core.errors import EvertrainError, ResourceError, UserCodeError
from train_core.storage.run_folder import RunFolder

if TYPE_CHECKING:
    from ray.remote_function import RemoteFunction
    from ray.train.torch import TorchTrainer

_ENVIRONMENT = {
    # Ray's default polls every 2 s, so each report would block about as long, and a worker's death
    # be seen as late. Twice a second costs 1% of the workers' CPU time.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    # Ray's default gives way to every other process, also to those that only watch the training.
    "RAY_worker_niceness": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
_LOCAL_ENVIRONMENT = {
    # Nobody starts the head of a local Ray again; Ray would wait for a minute.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
}
_LEAST_SILENCE_S = 30.0
"""A worker that loads libraries on a busy machine does not answer for a while."""
_LOOK_EVERY_S = 5.0
# Ray counts in ten thousandths: 0.6 CPUs are three times 0.2.
_ROUNDING = 1e-4
_log = logging.getLogger(__name__)


def check_resources(config: TrainConfig, patience_s: float = 0) -> None:
    """Raise ResourceError if this machine, or the cluster, can never give what workers need.

    A cluster whose nodes may still be joining it is given `patience_s`.
    """
    if config.ray_address == LOCAL:
        import torch

        here = {"CPU": float(available_cpus()), "GPU": float(torch.cuda.device_count())}
        _compare(config, "this machine", [here])
        return None
    import ray

    deadline = time.monotonic() + patience_s
    while True:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        try:
            return _compare(config, f"the cluster at {config.ray_address}", nodes)
        except ResourceError as error:
            if time.monotonic() >= deadline:
                raise
            _log.warning("waiting for nodes: %s", error)
        time.sleep(_LOOK_EVERY_S)


def with_gpus(config: TrainConfig) -> TrainConfig:
    """The configuration with `gpus_per_worker` decided: 1 if the fewest can have one, else 0."""
    if config.gpus_per_worker is not None:
        return config
    with_one = config.model_copy(update={"gpus_per_worker": 1.0})
    try:
        check_resources(with_one)
    except ResourceError:
        return config.model_copy(update={"gpus_per_worker": 0.0})
    return with_one


def start_ray(config: TrainConfig) -> None:
    """Start Ray for this process, or connect to the cluster whose job this process is."""
    environment = _ENVIRONMENT | (_LOCAL_ENVIRONMENT if config.ray_address == LOCAL else {})
    if config.hang_timeout_s:
        # A process that is stopped looks after nothing itself, but answers Ray no more.
        silent_s = max(config.hang_timeout_s, _LEAST_SILENCE_S)
        environment["RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S"] = str(silent_s)
    for name, value in environment.items():
        os.environ.setdefault(name, value)
    import ray

    if ray.is_initialized():
        return
    if config.ray_address == LOCAL:
        ray.init(
            address="local",
            num_cpus=available_cpus(),
            include_dashboard=False,
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


def free_resources() -> list[dict[str, float]]:
    """What nobody uses now of each node that will stay."""
    # Which node is drained, and what it has free, Ray has in no public function. Ray Train's own
    # notice of a preemption is a collective, for which every step would wait.
    from ray._private import state

    draining = set(state.state.get_draining_nodes())
    free = state.available_resources_per_node()
    return [free[node] for node in free if node not in draining]


def drained_under_workers() -> set[str]:
    """The ids of the nodes with workers of this process's training that are to be taken away."""
    from ray._private import state

    used = {node for _, reserved in _places() for node in reserved["bundles_to_node_id"].values()}
    return used & set(state.state.get_draining_nodes())


def capacity(config: TrainConfig, nodes: list[dict[str, float]]) -> int:
    """How many workers can be placed on nodes of these resources."""
    wanted = _wanted(config)
    fits = [
        int(min(node.get(name, 0) / amount for name, amount in wanted.items()) + _ROUNDING)
        for node in nodes
    ]
    can_place = {"STRICT_SPREAD": sum(fit > 0 for fit in fits), "STRICT_PACK": max(fits, default=0)}
    return can_place.get(config.placement_strategy, sum(fits))


def _wanted(config: TrainConfig) -> dict[str, float]:
    """What each worker reserves."""
    each = {"CPU": config.cpus_per_worker, "GPU": config.gpus_per_worker or 0}
    return {name: amount for name, amount in each.items() if amount}


def scoring_task(config: TrainConfig, function: Callable[..., Any]) -> RemoteFunction:
    """The function as a task of Ray with a worker's resources; whoever asked tries it again."""
    import ray

    task: RemoteFunction = ray.remote(
        num_cpus=config.cpus_per_worker, num_gpus=config.gpus_per_worker or 0, max_retries=0
    )(function)
    return task


def results_of(tasks: list[Any]) -> list[Any]:
    """What the tasks return. Raises ResourceError if Ray ended one for want of memory."""
    import ray
    from ray.exceptions import OutOfMemoryError

    try:
        return list(ray.get(tasks))
    except OutOfMemoryError as error:
        mend = "begin another run with a smaller eval_batch_size"
        raise _too_little_memory("who evaluates or infers", error, mend) from error


def launch(folder: RunFolder, config: TrainConfig, attempt: int) -> None:
    """Run one attempt at the training on Ray Train's workers; returns when it is done.

    Raises what the first failing rank raised if that is an EvertrainError, UserCodeError with that
    rank's traceback if it is the user's, ResourceError if Ray ended a rank for want of memory, and
    ConnectionError if a worker or Ray itself died.
    """
    from ray.exceptions import RayError
    from ray.train import TrainingFailedError, WorkerGroupError

    try:
        _trainer(folder, config, attempt).fit()
    except WorkerGroupError as error:
        raise _first_failure(error.worker_failures) from error
    except (TrainingFailedError, RayError) as error:
        _give_back_places()
        raise ConnectionError(f"Ray Train ended: {type(error).__name__}: {error}") from error


def _trainer(folder: RunFolder, config: TrainConfig, attempt: int) -> TorchTrainer:
    from fsspec.implementations.memory import MemoryFileSystem
    from pyarrow.fs import FSSpecHandler, PyFileSystem
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    return TorchTrainer(
        _train_worker,
        train_loop_config={
            "url": folder.url,
            "config": config.model_dump(mode="json"),
            "attempt": attempt,
        },
        torch_config=TorchConfig(backend="nccl" if config.uses_gpu else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=config.num_workers,
            use_gpu=config.uses_gpu,
            resources_per_worker=_wanted(config),
            placement_strategy=config.placement_strategy,
        ),
        run_config=RunConfig(
            name=f"a{attempt:04d}",
            # With every checkpoint that it is told of, Ray writes down what it knows, and ends the
            # training where that fails. Nobody reads it again: it stays in the controller's memory.
            storage_path=f"/{folder.name}",
            storage_filesystem=PyFileSystem(FSSpecHandler(MemoryFileSystem())),
            # Whether to try again is decided in one place, by the driver, with another attempt.
            failure_config=FailureConfig(  # type: ignore[call-arg]  # annotated as Ray's version 1
                max_failures=0,
                # Both unlimited if nothing is said.
                controller_failure_limit=0,
                max_preemption_failures=0,
            ),
        ),
    )


def _give_back_places() -> None:
    """Free what Ray Train reserved: it keeps the places of workers that failed as they began."""
    from ray._raylet import PlacementGroupID
    from ray.util.placement_group import PlacementGroup, remove_placement_group

    try:
        for key, _ in _places():
            remove_placement_group(PlacementGroup(PlacementGroupID(bytes.fromhex(key))))
    except Exception as error:  # noqa: BLE001 (whatever Ray raises when it is gone itself)
        _log.debug("what is reserved is not known: %s", error)


def _places() -> list[tuple[str, dict[str, Any]]]:
    """The placement groups of this process, by their ids, which end with that of its job."""
    import ray
    from ray.util.placement_group import placement_group_table

    job = ray.get_runtime_context().get_job_id()
    table: dict[str, dict[str, Any]] = placement_group_table()
    return [
        (key, one) for key, one in table.items() if key.endswith(job) and one["state"] != "REMOVED"
    ]


def _train_worker(task: dict[str, Any]) -> None:
    """What each Ray Train worker runs."""
    import ray.train

    from train_core.engine.group import Group
    from train_core.engine.logs import set_up_logging
    from train_core.engine.loop import Trainer

    set_up_logging(sys.stderr)
    storage = ray.train.get_context().get_storage()
    config = TrainConfig.model_validate(task["config"])
    group = Group.current(uses_gpu=config.uses_gpu)

    def tell_ray(metrics: dict[str, float], newest: str | None) -> None:
        checkpoint = None
        if newest and group.is_first:
            checkpoint = ray.train.Checkpoint(
                f"{storage.experiment_fs_path}/{newest}", storage.storage_filesystem
            )
        ray.train.report(
            metrics,
            checkpoint=checkpoint,
            checkpoint_upload_mode=ray.train.CheckpointUploadMode.NO_UPLOAD,
        )

    # What was imported stays: going through it for garbage would stop the loop for 0.2 s at times.
    gc.collect()
    gc.freeze()
    try:
        Trainer(RunFolder.at(task["url"]), config, task["attempt"], group, tell_ray).run()
    except EvertrainError:
        raise
    except Exception as error:
        if _follows_from_another_end(error):
            raise
        # Ray hands on the exception without its traceback.
        summary = f"rank {group.rank}: {type(error).__name__}: {error}"
        raise UserCodeError("train", summary, traceback.format_exc()) from error


def _first_failure(failures: dict[int, Exception]) -> Exception:
    """The error that the others followed from: not one of a connection that broke.

    Of two that failed by themselves before Ray looked, that of the lower rank.
    """
    from ray.exceptions import OutOfMemoryError, RayActorError

    causes = {rank: getattr(one, "health_check_failure", one) for rank, one in failures.items()}
    for kind in (EvertrainError, OutOfMemoryError, RayActorError, Exception):
        for rank, error in sorted(causes.items()):
            if isinstance(error, kind):
                return _as_ours(rank, error)
    raise AssertionError(failures)


def _as_ours(rank: int, error: Exception) -> Exception:
    from ray.exceptions import OutOfMemoryError

    if isinstance(error, EvertrainError):
        return error
    if isinstance(error, OutOfMemoryError):
        mend = "begin another run, with init_from, more accumulation_steps and a smaller batch_size"
        return _too_little_memory(f"rank {rank}", error, mend)
    return ConnectionError(f"rank {rank} died: {type(error).__name__}: {error}")


def _too_little_memory(who: str, error: Exception, mend: str) -> ResourceError:
    """It would be the same again; and what Ray says goes on for forty lines."""
    return ResourceError(
        f"{who} was ended by Ray's memory monitor: {str(error).splitlines()[0]}. Take fewer "
        f"workers on a node, fewer data_workers or larger nodes; or {mend}"
    )


def _follows_from_another_end(error: Exception) -> bool:
    """Whether another process's end is what broke this rank, and no bug of the user's."""
    from torch.distributed import DistError

    if isinstance(error, (ConnectionError, DistError)):
        return True
    # Neither gloo nor the DataLoader has a type of its own; gloo names the place in its source.
    said = ("/gloo/", "DataLoader worker (pid")
    return type(error) is RuntimeError and any(words in str(error) for words in said)


def _compare(config: TrainConfig, where: str, nodes: list[dict[str, float]]) -> None:
    """Raise ResourceError if the workers can never be placed on nodes of these resources."""
    most, fewest = capacity(config, nodes), config.fewest_workers
    if fewest > most:
        wanted = _wanted(config)
        needs = " and ".join(f"{amount:g} {name}" for name, amount in wanted.items())
        has = ", ".join(f"{sum(node.get(name, 0) for node in nodes):g} {name}" for name in wanted)
        raise ResourceError(
            f"{fewest} workers of {needs} each cannot be placed by "
            f"{config.placement_strategy}: {where} has {len(nodes)} node(s) with {has}, enough for "
            f"{most}. Ask for fewer workers (num_workers) or less for each (cpus_per_worker, "
            "gpus_per_worker)"
        )
