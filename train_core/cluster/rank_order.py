"""The order of ranks by node and GPU, and the environment variables of each rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Location:
    """The node and the GPUs on which Ray has placed a worker."""

    node: str
    gpus: tuple[str, ...] = ()
    """The ids of its GPUs, in their order; a part of a GPU counts as that GPU."""
    ready_at: float = 0
    """When it had finished its imports, in seconds since 1970."""


@dataclass(frozen=True)
class Rank:
    """One rank of an attempt: its number, its node and the GPUs that it sees."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    node: str
    gpus: tuple[str, ...]
    """The GPUs of all ranks on its node: a rank sees all of them, so that NCCL can connect them."""
    device: int
    """The index of its own first one among `gpus`."""

    def environment(self) -> dict[str, str]:
        """The environment variables that torchrun sets, and libraries read."""
        variables = {
            "RANK": self.rank,
            "WORLD_SIZE": self.world_size,
            "LOCAL_RANK": self.local_rank,
            "LOCAL_WORLD_SIZE": self.local_world_size,
            "NODE_RANK": self.node_rank,
            # Accelerate takes its device from here.
            "ACCELERATE_TORCH_DEVICE": f"cuda:{self.device}" if self.gpus else "cpu",
        }
        shared = {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus)} if self.gpus else {}
        return {name: str(value) for name, value in variables.items()} | shared


def assign_ranks(locations: Sequence[Location]) -> list[tuple[int, Rank]]:
    """For each rank in their order: the index of its worker, and its environment.

    The ranks of a node are consecutive, in the order of their GPUs; nodes are in the order of the
    workers. Ray Train uses the same order.
    """
    nodes = list(dict.fromkeys(one.node for one in locations))
    order = sorted(
        range(len(locations)),
        key=lambda index: (
            nodes.index(locations[index].node),
            [(len(gpu), gpu) for gpu in locations[index].gpus],
            index,
        ),
    )
    ranks = []
    for number, index in enumerate(order):
        own = locations[index]
        peers = [one for one in order if locations[one].node == own.node]
        gpus = tuple(dict.fromkeys(gpu for one in peers for gpu in locations[one].gpus))
        rank = Rank(
            rank=number,
            world_size=len(order),
            local_rank=peers.index(index),
            local_world_size=len(peers),
            node_rank=nodes.index(own.node),
            node=own.node,
            gpus=gpus,
            device=gpus.index(own.gpus[0]) if own.gpus else 0,
        )
        ranks.append((index, rank))
    return ranks
