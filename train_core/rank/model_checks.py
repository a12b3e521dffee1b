"""What a training refuses of a model, an optimizer or a schedule, by name and in one line."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from train_core.config import TrainConfig
from train_core.errors import ConfigError, WorkloadError
from train_core.optimizers import CombinedOptimizer
from train_core.policy.samples.steps import StepPlan
from train_core.rank.distributed.reducer import sparse_gradient

_NOT_DETERMINISTIC = "does not have a deterministic implementation"


def check_model(model: nn.Module, num_shards: int) -> None:
    """Raise WorkloadError for a model that could not be trained exactly on so many shards."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise WorkloadError(
                f"{name!r} has no shape yet, since its lazy layer was never called: call the model "
                "once on an example in `model()`"
            )
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and _overlaps_itself(parameter):
            raise WorkloadError(
                f"{name!r} is an expanded tensor, of which several of its values lie at one place "
                "in memory: clone it before it becomes a parameter"
            )
    if num_shards == 1:
        return
    _refuse_shared_buffers(model)
    for name, module in model.named_modules():
        if isinstance(module, nn.SyncBatchNorm):
            raise WorkloadError(
                f"{name!r} is a SyncBatchNorm, whose statistics would depend on the number of "
                "workers: use BatchNorm, GroupNorm or LayerNorm, or train on one shard "
                "(num_shards 1)"
            )
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            weight = f"{name}.weight" if name else "weight"
            if module.sparse and module.weight.requires_grad:
                raise WorkloadError(sparse_gradient(weight))
            if module.max_norm is not None:
                raise WorkloadError(
                    f"each forward pass normalises {weight!r} in place (max_norm), so that each "
                    "shard of a batch would meet other weights: normalise it in `after_step`, or "
                    "train on one shard (num_shards 1)"
                )


def _refuse_shared_buffers(model: nn.Module) -> None:
    """Raise WorkloadError for a buffer in the memory of a parameter that is trained.

    Each shard begins with the step's first buffers, which would change the parameter.
    """
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    memory = {name: _memory_of(p) for name, p in trained}
    for name, buffer in model.named_buffers():
        mine = _memory_of(buffer)
        for parameter, its in memory.items():
            if mine and its and mine.start < its.stop and its.start < mine.stop:
                raise WorkloadError(
                    f"buffer {name!r} shares memory with parameter {parameter!r}: compute it in "
                    "forward, or clone it"
                )


def _memory_of(tensor: Tensor) -> range:
    """Where the tensor lies in memory; empty: it has none, or is no plain tensor."""
    if tensor.layout != torch.strided or tensor.is_meta or not tensor.numel():
        return range(0)
    sizes = zip(tensor.size(), tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in sizes)
    begin = tensor.data_ptr()
    return range(begin, begin + (last + 1) * tensor.element_size())


def check_optimizer(workload: Any, optimizer: Any, schedule: Any, config: TrainConfig) -> None:
    """Raise WorkloadError for an optimizer or a schedule that the loop cannot step."""
    name = type(workload).__name__
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise WorkloadError(
            f"optimizer() of {name} gives a {type(optimizer).__name__}: give one torch optimizer; "
            "several become one by train_core.CombinedOptimizer(first, second)"
        )
    parts = optimizer.optimizers if isinstance(optimizer, CombinedOptimizer) else (optimizer,)
    for one in parts:
        closure = inspect.signature(one.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise WorkloadError(
                f"{type(one).__name__} of {name} computes the loss again in each step, by a "
                "closure: use an optimizer that steps from the gradients"
            )
    if (
        isinstance(schedule, torch.optim.lr_scheduler.ReduceLROnPlateau)
        and schedule.mode != config.order
    ):
        raise WorkloadError(
            f"schedule() of {name} gives a ReduceLROnPlateau with mode {schedule.mode!r}, and it "
            f"goes by {config.monitor}, of which the {config.order} is the best: give "
            f"mode={config.order!r}, or another monitor"
        )
    has_all = all(hasattr(schedule, one) for one in ("step", "state_dict", "load_state_dict"))
    if schedule is not None and not has_all:
        raise WorkloadError(
            f"schedule() of {name} gives a {type(schedule).__name__}: give one schedule with "
            "step(), state_dict() and load_state_dict(), as torch's have them, or None"
        )


@contextmanager
def refusing_lone_samples(model: nn.Module, num_samples: int, plan: StepPlan) -> Iterator[None]:
    """Refuse the plan, which has passes of one sample, if BatchNorm meets one value of each then.

    Raises ConfigError in a forward pass of `num_samples`, if a BatchNorm in training sees no more
    values of a channel than that.
    """
    names = {module: name for name, module in model.named_modules()}

    def check(module: nn.Module, given: tuple[Any, ...], by_name: dict[str, Any]) -> None:
        inputs = given[0] if given else by_name.get("input")
        if not module.training or not isinstance(inputs, Tensor):
            return
        if inputs.numel() <= num_samples * inputs.shape[1]:
            raise ConfigError(
                f"{plan.num_samples} samples in batches of {plan.options.batch_size} leave one "
                f"sample alone in a forward pass, and BatchNorm {names[module]!r} needs two: leave "
                "out the last, smaller batch (drop_last), or take another batch_size"
            )

    hooks = [
        module.register_forward_pre_hook(check, with_kwargs=True)
        for module in model.modules()
        if isinstance(module, _BatchNorm)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def refusing_undetermined() -> Iterator[None]:
    """Raise WorkloadError for an operation in the block that has no deterministic algorithm."""
    try:
        yield
    except RuntimeError as error:
        if _NOT_DETERMINISTIC not in str(error):
            raise
        operation = str(error).split(_NOT_DETERMINISTIC)[0].strip()
        raise WorkloadError(
            f"{operation} has no deterministic algorithm, so that a resume could not be exact: "
            "compute it otherwise, set threads_per_worker to 1 on a CPU, or allow other bits "
            "(deterministic false)"
        ) from error


def _overlaps_itself(tensor: Tensor) -> bool:
    return any(
        size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
