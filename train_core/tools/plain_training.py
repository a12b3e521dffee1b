"""What a training has to give, computed in plain PyTorch: no reducer, no hooks, no ranks.

For each shard of a step: the step's first buffers, the same seeds, the loss times its weight, and
backward. A gradient that is None is kept as None. The gradients are summed in the tree's order;
then the optimizer and the schedule do one step. Of the engine's own code it uses what reads and
prepares a batch, and the seeds, which are a rule and no calculation.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils._pytree import tree_leaves

from train_core.config import TrainConfig
from train_core.datasets.protocols import Dataset, users_own
from train_core.policy.samples.randomness import FORWARD, INIT, ORDER, UPDATE, derive_seed
from train_core.rank.data.batches import TrainBatches, model_to_device, to_device
from train_core.rank.distributed.group import use_deterministic_algorithms
from train_core.storage.records.run_record import NEWEST_STEP_RULES
from train_core.workload import Batch, Workload, weighs

CPU = torch.device("cpu")


class PlainTraining:
    """A training of `workload` on `dataset`, one step at a time, on one device.

    `total_steps` are those of the schedule; 0: as many as the dataset gives. `on_batch` is called
    with the shard, the batch and the weighted loss of each backward pass.
    """

    def __init__(
        self,
        workload: Workload[Any],
        config: TrainConfig,
        dataset: Dataset,
        *,
        total_steps: int = 0,
        step_rules: int = NEWEST_STEP_RULES,
        on_batch: Callable[[int, Batch, Tensor], None] | None = None,
        device: torch.device = CPU,
    ) -> None:
        torch.set_num_threads(config.threads_per_worker)
        use_deterministic_algorithms(config, device, step_rules)
        self.device = device
        self.step_rules = step_rules
        self.workload = workload
        self.config = config
        self.dataset = dataset
        self._on_batch = on_batch
        self._weighs = weighs(workload)
        self._batches = TrainBatches(workload, dataset, config.seed)
        num_samples = len(dataset)
        self.steps_per_epoch = num_samples // config.batch_size
        if num_samples % config.batch_size and not config.drop_last:
            self.steps_per_epoch += 1
        self.total_steps = total_steps or config.epochs * self.steps_per_epoch
        _seed(config.seed, INIT)
        model = model_to_device(workload.model(), device, channels_last=config.channels_last)
        self.model = _in_training(model) if step_rules > 1 else model.train()
        self._forward_model: Any = self.model
        if config.compile:
            self._forward_model = torch.compile(self.model, dynamic=False)
        self.optimizer = workload.optimizer(self.model)
        self.schedule = workload.schedule(self.optimizer, self.total_steps)
        self.waits_for_metric = isinstance(self.schedule, ReduceLROnPlateau)
        """Whether the schedule goes by validations, of which there are none here."""
        workload.initialize(self.model)

    def step(self, step: int) -> None:
        """One step of the optimizer."""
        model, config = self.model, self.config
        first_buffers = _buffers(model)
        buffers_of_shard_0: dict[str, Tensor | None] = {}
        gradients: list[dict[str, Tensor | None]] = []
        weights: list[float] = []
        for shard in range(config.shards):
            _set_buffers(model, first_buffers)
            for parameter in model.parameters():
                parameter.grad = None
            weight = self._backward(step, shard)
            of_shard = {name: p.grad for name, p in model.named_parameters()}
            if self.step_rules == 1 and config.shards > 1:
                of_shard = {
                    name: torch.zeros_like(p) if p.grad is None else p.grad
                    for name, p in model.named_parameters()
                }
            gradients.append(of_shard)
            weights.append(weight)
            if shard == 0:
                buffers_of_shard_0 = _buffers(model)
        _set_buffers(model, buffers_of_shard_0)
        for name, parameter in model.named_parameters():
            parameter.grad = _sum_of_tree([of_shard[name] for of_shard in gradients])
            if self._weighs and parameter.grad is not None:
                parameter.grad *= 1 / sum(weights)
        _seed(config.seed, UPDATE, step)
        if config.clip_norm:
            nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
        self.optimizer.step()
        is_last = step + 1 >= self.total_steps
        if self.schedule is not None and not (self.waits_for_metric or is_last):
            self.schedule.step()
        self.workload.after_step(model, step + 1)

    def _backward(self, step: int, shard: int) -> float:
        """The backward passes of a shard; the sum of its batches' weights, if it has any."""
        weight = 0.0
        config = self.config
        epoch, step_in_epoch = divmod(step, self.steps_per_epoch)
        begin = step_in_epoch * config.batch_size
        number_of_samples = len(self.dataset)
        end = min(begin + config.batch_size, number_of_samples)
        shuffled = np.random.Generator(np.random.Philox(derive_seed(config.seed, ORDER, epoch)))
        if type(self.workload).order is not Workload.order:
            whole = users_own(self.dataset)
            order = np.resize(self.workload.order(whole, shuffled), number_of_samples)
            order %= number_of_samples
        else:
            order = shuffled.permutation(number_of_samples)
        for micro_step, part in enumerate(
            np.array_split(order[begin:end], config.accumulation_steps)
        ):
            indices = np.array_split(part, config.shards)[shard]
            if not len(indices):
                continue
            batch = self.batch(epoch, indices)
            batch = to_device(batch, self.device, channels_last=config.channels_last)
            # `forward` may change the dict, which the engine's digests have as it was.
            given = dict(batch)
            _seed(config.seed, FORWARD, step, micro_step, shard)
            use_bf16 = config.precision == "bf16"
            with torch.autocast(self.device.type, torch.bfloat16, enabled=use_bf16):
                outputs = self.workload.forward(self._forward_model, batch)
                loss = self.workload.loss(outputs, batch)
            weighted = loss * (len(indices) / (end - begin))
            if self._weighs:
                of_batch = float(self.workload.weight(given))
                weight += of_batch
                # A mean over nothing is NaN, and adds nothing.
                weighted = loss * of_batch if of_batch else _zero(outputs)
            if self._on_batch is not None:
                self._on_batch(shard, given, weighted)
            weighted.backward()
        return weight

    def batch(self, epoch: int, indices: npt.NDArray[np.int64]) -> Batch:
        """The samples at these indices, prepared."""
        return self._batches.read(epoch, indices)


def _seed(seed: int, purpose: int, *path: int) -> None:
    _set_generators(derive_seed(seed, purpose, *path))


def _set_generators(number: int) -> None:
    torch.manual_seed(number)
    np.random.seed(number & 0xFFFFFFFF)  # noqa: NPY002 (models draw from it)
    random.seed(number)


def _in_training(model: nn.Module) -> nn.Module:
    """The model in training mode; parts that `model()` set to evaluation stay there."""
    fixed = [m for m in model.modules() if not m.training] if model.training else []
    model.train()
    for module in fixed:
        module.training = False
    return model


def _zero(outputs: Any) -> Tensor:
    tensors = [one for one in tree_leaves(outputs) if isinstance(one, Tensor)]
    return functional.mse_loss(tensors[0][:0], tensors[0][:0], reduction="sum")


def _buffers(model: nn.Module) -> dict[str, Tensor | None]:
    return {
        f"{path}.{name}" if path else name: None if buffer is None else buffer.clone()
        for path, module in model.named_modules()
        for name, buffer in module._buffers.items()  # noqa: SLF001 (there is no other way to it)
    }


def _set_buffers(model: nn.Module, values: dict[str, Tensor | None]) -> None:
    for name in _buffers(model).keys() | values.keys():
        path, _, last = name.rpartition(".")
        buffers = model.get_submodule(path)._buffers  # noqa: SLF001 (as above)
        if name in values:
            value = values[name]
            buffers[last] = None if value is None else value.clone()
        else:
            del buffers[last]


def _sum_of_tree(parts: Sequence[Tensor | None]) -> Tensor | None:
    """The sum; its left half is the largest power of two below the whole."""
    if len(parts) == 1:
        return parts[0]
    middle = 1
    while 2 * middle < len(parts):
        middle *= 2
    left, right = _sum_of_tree(parts[:middle]), _sum_of_tree(parts[middle:])
    if left is None or right is None:
        return right if left is None else left
    return left + right
