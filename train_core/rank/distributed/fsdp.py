"""Strategy `fsdp`: each rank keeps a slice of the weights, gradients and optimizer state.

torch's FSDP2 gathers a block's weights for its forward and its backward pass and frees them after
it. So passes are collectives: every rank does equally many (`StepPlan.equal_passes`), and none
while weights are validated, as all of them are gathered before (`gathered`). Gradients are summed
over ranks by FSDP's own reduce-scatter: equal bits for equal numbers of ranks only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn

from train_core.datasets.protocols import Dataset, Stream, is_stream
from train_core.errors import ConfigError, WorkloadError
from train_core.policy.samples.steps import StepPlan
from train_core.rank.distributed.group import Group
from train_core.workload import Workload

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def check_passes(plan: StepPlan, dataset: Dataset | Stream, world_size: int) -> None:
    """Raise ConfigError if ranks cannot do equally many passes: a stream reads nothing twice."""
    if is_stream(dataset) and plan.needs_padding(world_size):
        raise ConfigError(
            f"strategy fsdp: of a stream's {plan.num_samples} samples in batches of "
            f"{plan.options.batch_size}, {world_size} workers would not compute equally many "
            f"micro-batches of {plan.num_shards} shards. Take num_shards that the workers divide, "
            "and drop_last, or use ddp"
        )


def shard(model: nn.Module, workload: Workload[Any], group: Group) -> None:
    """Cut every parameter along its first dimension over the ranks, in place: they are DTensors.

    Raises WorkloadError for a parameter that belongs to two blocks.
    """
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    if not hasattr(FSDPModule, "reset_iter_state"):
        raise ConfigError(f"strategy fsdp needs torch 2.13 or newer, this is {torch.__version__}")
    name, num_parameters = type(model).__name__, len(list(model.parameters()))
    world = dist.group.WORLD
    assert world is not None, "a group of several ranks without a process group"
    mesh = DeviceMesh.from_group(world, group.device.type)
    for block in dict.fromkeys(workload.blocks(model)):
        if block is not model and next(block.parameters(), None) is not None:
            fully_shard(block, mesh=mesh, reshard_after_forward=True)
    # Backward begins with what the root itself has: it is kept till then.
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    if len(list(model.parameters())) != num_parameters:
        raise WorkloadError(
            f"a parameter of {name} is shared by two of its blocks, or by one and "
            "the rest of the model: with strategy fsdp, let `blocks` leave out those that share it"
        )
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # Losses are weighted by their share of the step: gradients are added, not averaged.
            module.set_gradient_divide_factor(1.0)
            # gloo has no other reduction.
            module.set_force_sum_reduction_for_comms(True)


def load_whole(model: nn.Module, whole: nn.Module) -> None:
    """Give a sharded model the values of a whole one that every rank has: no traffic."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    options = StateDictOptions(full_state_dict=True)
    set_model_state_dict(model, whole.state_dict(), options=options)


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """All weights on every rank meanwhile: forward passes concern no other rank.

    Ranks have different numbers of validation batches.
    """
    from torch.distributed.fsdp import FSDPModule

    modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for module in modules:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        yield
    finally:
        # FSDP remembers the order of forward passes, to fetch weights ahead of a backward pass. Of
        # these passes there is none, and each rank did another number of them; one that resumes
        # before a validation may have done none yet, and has nothing to forget.
        if model._get_fsdp_state()._is_root:  # type: ignore[operator]  # noqa: SLF001 (nothing public says it)
            model.reset_iter_state()  # type: ignore[operator]  # the root is an FSDPModule
        for module in modules:
            module.reshard()
            module.set_reshard_after_forward(module is not model, recurse=False)


def whole_tensor(tensor: Tensor) -> Tensor:
    """The value of a DTensor on every rank; called by all of them."""
    return tensor.full_tensor() if is_distributed(tensor) else tensor


class ShardedReducer:
    """The `Reducer` of a sharded model: FSDP sums over ranks in each backward pass.

    Gradients are accumulated sharded: waiting for the last pass would save traffic, at the price
    of a whole gradient on every rank, which is what fsdp is there to avoid.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._parameters = list(parameters)
        self._begins_step = True

    def begin_shard(self, shard: int) -> None:
        """The rank's first shard of a step forgets the last step's gradients."""
        if self._begins_step:
            for parameter in self._parameters:
                parameter.grad = None
        self._begins_step = False

    def expect_last_backward(self) -> None:
        """Every pass is reduced when it is done."""

    def end_shard(self) -> None:
        """Every pass is reduced when it is done."""

    def finish(self) -> None:
        """The parameters' `grad` are the sums; the next shard begins a step."""
        self._begins_step = True

    def follow(self) -> None:
        """FSDP follows its parameters itself."""

    def close(self) -> None:
        """Nothing is left open."""


def is_distributed(tensor: Any) -> TypeGuard[DTensor]:
    """Whether it is a tensor of which each rank has a part."""
    # Whoever made a DTensor has imported the module; here it would cost the driver a second.
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", ())
    return isinstance(tensor, kind)
