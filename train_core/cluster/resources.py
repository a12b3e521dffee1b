"""The resources that workers need, and those that this machine or a cluster has."""

from __future__ import annotations

import logging
import time
from typing import Any

from train_core.cluster.lent import lent_places
from train_core.config import LOCAL, TrainConfig, available_cpus
from train_core.errors import ResourceError
from train_core.timing import TIMING, ClusterTiming

# Ray counts in ten thousandths: 0.6 CPUs are three times 0.2.
_ROUNDING = 1e-4
_log = logging.getLogger(__name__)


def check_resources(
    config: TrainConfig,
    retry_for_s: float = 0,
    timing: ClusterTiming = TIMING.cluster,
    *,
    reads_by_ray: bool = False,
) -> None:
    """Raise ResourceError if this machine or the cluster can never have the workers' resources.

    With `reads_by_ray` also if the workers leave no node a whole CPU: Ray Data, which reads for
    them, would wait for one for ever. The check of a cluster is retried for `retry_for_s`, as
    nodes may still be joining it.
    """
    if lent := lent_places():
        return _check_lent(config, lent.places)
    if config.ray_address == LOCAL:
        return _compare(config, "this machine", [_of_this_machine()], reads_by_ray)
    import ray

    deadline = time.monotonic() + retry_for_s
    while True:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        try:
            return _compare(config, f"the cluster at {config.ray_address}", nodes, reads_by_ray)
        except ResourceError as error:
            if time.monotonic() >= deadline:
                raise
            _log.warning("waiting for nodes: %s", error)
        time.sleep(timing.nodes_poll_s)


def _check_lent(config: TrainConfig, places: list[dict[str, float]]) -> None:
    """Raise ResourceError if somebody has reserved other places than the workers need."""
    wanted = resources_of_worker(config)
    are_enough = all(
        place.get(name, 0) >= amount for place in places for name, amount in wanted.items()
    )
    if len(places) != config.num_workers or not are_enough:
        each = " and ".join(f"{amount:g} {name}" for name, amount in wanted.items())
        raise ResourceError(
            f"{config.num_workers} workers of {each} each are asked for, and the trial has "
            f"reserved {len(places)} places: give trainable() the num_workers, cpus_per_worker and "
            "gpus_per_worker that the trainer has"
        )


def fits_here(config: TrainConfig) -> bool:
    """Whether this machine has room for all the workers."""
    return bool(lent_places()) or capacity(config, [_of_this_machine()]) >= config.num_workers


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


def resources_of_worker(config: TrainConfig) -> dict[str, float]:
    """The resources that each worker reserves."""
    each = {"CPU": config.cpus_per_worker, "GPU": config.gpus_per_worker or 0}
    return {name: amount for name, amount in each.items() if amount}


def free_resources() -> list[dict[str, float]]:
    """The free resources of each node that is not being drained."""
    # Ray has no public function for drained nodes and free resources by node. Ray Train's own
    # notice of a preemption is a collective, for which every step would wait.
    from ray._private import state

    draining = set(state.state.get_draining_nodes())
    free = state.available_resources_per_node()
    return [free[node] for node in free if node not in draining]


def available_memory_bytes() -> int:
    """The memory that processes of this machine, or of its container, can still take."""
    import psutil
    from ray._private.utils import estimate_available_memory

    # Ray reads a container's limit, and not what else takes memory of the machine.
    return int(min(estimate_available_memory(), psutil.virtual_memory().available))


def drained_under_workers() -> set[str]:
    """The ids of nodes that are being drained and have workers of this process's training."""
    from ray._private import state

    used = {
        node
        for group in _placement_groups().values()
        for node in group["bundles_to_node_id"].values()
    }
    return used & set(state.state.get_draining_nodes())


def remove_placement_groups() -> None:
    """Give back what the placement groups of this process's job reserve."""
    import ray
    from ray.util.placement_group import PlacementGroup, remove_placement_group

    for key in _placement_groups():
        remove_placement_group(PlacementGroup(ray.PlacementGroupID(bytes.fromhex(key))))


def capacity(config: TrainConfig, nodes: list[dict[str, float]]) -> int:
    """How many workers can be placed on nodes of these resources."""
    wanted = resources_of_worker(config)
    fits = [
        int(min(node.get(name, 0) / amount for name, amount in wanted.items()) + _ROUNDING)
        for node in nodes
    ]
    can_place = {"STRICT_SPREAD": sum(fit > 0 for fit in fits), "STRICT_PACK": max(fits, default=0)}
    return can_place.get(config.placement_strategy, sum(fits))


def capacity_beside_ray_data(config: TrainConfig, nodes: list[dict[str, float]]) -> int:
    """How many workers can be placed so that a node has a CPU left, for a task of Ray Data."""
    without = [{**node, "CPU": node.get("CPU", 0) - 1} for node in nodes]
    return max(
        (
            capacity(config, [*nodes[:index], one, *nodes[index + 1 :]])
            for index, one in enumerate(without)
            if one["CPU"] >= 0
        ),
        default=0,
    )


def _of_this_machine() -> dict[str, float]:
    import torch

    return {"CPU": float(available_cpus()), "GPU": float(torch.cuda.device_count())}


def _compare(
    config: TrainConfig, where: str, nodes: list[dict[str, float]], reads_by_ray: bool
) -> None:
    """Raise ResourceError if the workers can never be placed on nodes of these resources."""
    most, fewest = capacity(config, nodes), config.fewest_workers
    wanted = resources_of_worker(config)
    needs = " and ".join(f"{amount:g} {name}" for name, amount in wanted.items())
    has = ", ".join(f"{sum(node.get(name, 0) for node in nodes):g} {name}" for name in wanted)
    if fewest > most:
        raise ResourceError(
            f"{fewest} workers of {needs} each cannot be placed by "
            f"{config.placement_strategy}: {where} has {len(nodes)} node(s) with {has}, enough for "
            f"{most}. Ask for fewer workers (num_workers) or less for each (cpus_per_worker, "
            "gpus_per_worker)"
        )
    if reads_by_ray and fewest > (most := capacity_beside_ray_data(config, nodes)):
        raise ResourceError(
            f"{fewest} workers of {needs} each leave no node the CPU that Ray Data needs to read "
            f"the trainer's datasets: {where} has {len(nodes)} node(s) with {has}, enough for "
            f"{most} beside it. In the trainer's ScalingConfig ask for fewer workers (num_workers) "
            "or less for each (resources_per_worker)"
        )


def _placement_groups() -> dict[str, dict[str, Any]]:
    """The placement groups of this process by their ids, which end with that of its job."""
    import ray
    from ray.util.placement_group import placement_group_table

    job = ray.get_runtime_context().get_job_id()
    table: dict[str, dict[str, Any]] = placement_group_table()
    return {
        key: group
        for key, group in table.items()
        if key.endswith(job) and group["state"] != "REMOVED"
    }
