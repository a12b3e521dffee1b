"""What is trained: the model, its optimizer and schedule, and how the ranks share the work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from train_core.config import TrainConfig
from train_core.errors import WorkloadError
from train_core.policy.checkpoints.layout import BUFFERS, MODEL, OPTIMIZER, WORKLOAD
from train_core.policy.samples.randomness import INIT, UPDATE, derive_seed
from train_core.policy.samples.sharding import shards_of_rank
from train_core.policy.samples.steps import MicroBatch
from train_core.rank.checkpoint.init_from import InitialState
from train_core.rank.checkpoint.packing import retyped
from train_core.rank.checkpoint.reader import Assembly, sharded_assembly
from train_core.rank.checkpoint.state import (
    TrainingState,
    load_model_state,
    load_optimizer_state,
    load_unsaved_buffers,
    model_state,
    optimizer_state,
    unsaved_buffers,
)
from train_core.rank.data.batches import model_to_device
from train_core.rank.distributed import fsdp
from train_core.rank.distributed.buffers import Buffers
from train_core.rank.distributed.group import Group
from train_core.rank.distributed.host_copy import HostCopy
from train_core.rank.distributed.reducer import Reducer
from train_core.rank.followed import Followed
from train_core.rank.metrics.evaluation_loop import set_modes
from train_core.rank.model_checks import (
    check_model,
    check_optimizer,
    refusing_undetermined,
)
from train_core.storage.records.run_record import NEWEST_STEP_RULES, Origin
from train_core.workload import Batch, Workload, seed_generators, weighs, weight_of


class Learner:
    """A workload's model on this rank, whole or sharded, with all that a step changes in it.

    `model` has the parameters, `forward_model` computes: the same, or what it was compiled to.
    """

    def __init__(
        self,
        workload: Workload[Any],
        config: TrainConfig,
        group: Group,
        schedule_steps: int,
        step_rules: int = NEWEST_STEP_RULES,
    ) -> None:
        self._workload = workload
        self._step_rules = step_rules
        self._config = config
        self._group = group
        self._schedule_steps = schedule_steps
        # A rank alone has nothing to share, and trains the whole model.
        self.is_sharded = config.strategy == "fsdp" and group.world_size > 1
        self.model = self._new_model()
        if step_rules > 1:
            check_model(self.model, config.shards)
        if self.is_sharded:
            fsdp.shard(self.model, workload, group)
        self.forward_model = self.model
        if config.compile:
            # A kernel for each shape: one for any shape would be made of the shapes met so far,
            # which are others after a resume, and so would be its bits.
            self.forward_model = cast("nn.Module", torch.compile(self.model, dynamic=False))
        self.optimizer = workload.optimizer(self.model)
        self.schedule = workload.schedule(self.optimizer, schedule_steps)
        check_optimizer(workload, self.optimizer, self.schedule, config)
        self._waits_for_metric = isinstance(self.schedule, ReduceLROnPlateau)
        self.reducer = (
            fsdp.ShardedReducer(self.model.parameters())
            if self.is_sharded
            else Reducer(self.model, config.shards, group, none_is_zero=step_rules == 1)
        )
        self.followed = Followed(
            self.model, self.optimizer, may_change_in_forward=config.shards == 1 or step_rules == 1
        )
        """What may change while it is trained. With strategy fsdp, parameters are others then."""
        self._weights: torch.Tensor | None = None
        """Of this rank's batches of the step, added up for each shard, if the workload weighs."""
        if weighs(workload):
            self._weights = torch.zeros(config.shards, dtype=torch.float64, device=group.device)
        self._shards = shards_of_rank(config.shards, group.world_size, group.rank)
        self.buffers = Buffers(self.model, len(self._shards), group)

    @property
    def learning_rate(self) -> float:
        """That of the first group of parameters."""
        return float(self.optimizer.param_groups[0]["lr"])

    def begin(self, origin: Origin | None) -> None:
        """Load the weights that a new run begins with: the workload's, or those of `origin`."""
        first = None
        if self._config.init_from:
            first = self._group.raise_if_any_failed(
                partial(InitialState.read, origin, self._config)
            )
        is_default = type(self._workload).initialize is Workload.initialize
        if self.is_sharded and first is None and is_default:
            return
        # A plain state dict fits into a whole model only.
        whole = self._new_model() if self.is_sharded else self.model
        if first is None:
            self._workload.initialize(whole)
        else:
            first.give_weights(whole)
        if self.is_sharded:
            fsdp.load_whole(self.model, whole)
        if first is not None:
            first.give_optimizer(self.model, self.optimizer)

    def assembly(self) -> Assembly:
        """What puts a checkpoint's files together for this rank."""
        if self.is_sharded:
            return sharded_assembly(self.model, self._group)
        return Assembly(device=self._group.device)

    def add_to(self, state: TrainingState) -> None:
        """Add what a step changes to the training's state."""
        # First: it refuses by name what the others could not save.
        if not self.is_sharded:
            state.add("followed", self.followed.capture, self.followed.restore, is_optional=True)
        model, optimizer, schedule = self.model, self.optimizer, self.schedule
        state.add(
            MODEL, partial(model_state, model), partial(load_model_state, model), is_exact=True
        )
        state.add(
            BUFFERS,
            partial(unsaved_buffers, model),
            partial(load_unsaved_buffers, model),
            is_exact=True,
            is_optional=True,
        )
        state.add(
            OPTIMIZER,
            partial(optimizer_state, model, optimizer),
            partial(load_optimizer_state, model, optimizer),
            is_exact=True,
        )
        if schedule is not None:
            state.add(
                "schedule",
                schedule.state_dict,
                lambda saved: schedule.load_state_dict(retyped(saved, schedule.state_dict())),
                is_exact=True,
            )
        workload = self._workload
        state.add(
            WORKLOAD,
            workload.state_dict,
            lambda saved: workload.load_state_dict(retyped(saved, workload.state_dict())),
        )

    @contextmanager
    def gathered(self) -> Iterator[nn.Module]:
        """The model with all its weights on this rank: its forward passes concern no other."""
        if not self.is_sharded:
            yield self.forward_model
            return
        with fsdp.gathered(self.model):
            yield self.forward_model

    def begin_step(self) -> None:
        """Follow what changed since the last step. Raises WorkloadError if it cannot be."""
        if not self.is_sharded and self.followed.has_changed():
            self.reducer.follow()
        self.buffers.begin_passes()

    @contextmanager
    def shard(self, shard: int) -> Iterator[None]:
        """The backward passes in the block are a shard's; the shards come in their order."""
        self.reducer.begin_shard(shard)
        self.buffers.begin_shard(is_first_here=shard == self._shards.start)
        yield
        self.reducer.end_shard()
        self.buffers.end_shard(shard)

    def share_of(self, micro: MicroBatch, batch: Batch) -> float:
        """What the micro-batch's loss is multiplied by: its share of the step's samples.

        If the workload weighs, it is the batch's weight; `exchange` then divides.
        """
        if self._weights is None or micro.weight == 0:
            return micro.weight
        weight = weight_of(self._workload, batch)
        self._weights[micro.shard] += weight
        return weight

    def exchange(self) -> float | None:
        """Wait for the sums of all ranks' gradients, and for shard 0's buffers.

        The sum of the weights of the step's batches, if the workload weighs.
        """
        self.buffers.send()
        self.reducer.finish()
        if not self.is_sharded:
            self.followed.check_unchanged()
        self.buffers.finish()
        return None if self._weights is None else self._divide(self._weights)

    def close(self) -> None:
        """End the thread that exchanges gradients."""
        self.reducer.close()

    def apply_gradients(self, step: int) -> HostCopy | None:
        """Clip, update the weights and the learning rate; the gradient's norm if it was clipped."""
        # For an optimizer or a hook that draws: the same on every rank, whatever its last shard.
        seed_generators(derive_seed(self._config.seed, UPDATE, step))
        norm = None
        if self._config.clip_norm:
            parameters = self.model.parameters()
            norm = HostCopy(
                fsdp.whole_tensor(
                    torch.nn.utils.clip_grad_norm_(parameters, self._config.clip_norm)
                )
            )
        self.optimizer.step()
        # Not after its last step: beyond it a cycle goes up again, and an extended run would, too.
        is_last = step + 1 >= self._schedule_steps
        if self.schedule is not None and not (self._waits_for_metric or is_last):
            self.schedule.step()
        return norm

    def end_validation(self, monitored: float) -> None:
        """Change the rates by the monitored metric, if the schedule is a ReduceLROnPlateau."""
        if self.schedule is not None and self._waits_for_metric:
            self.schedule.step(monitored)  # type: ignore[arg-type]  # its stub takes epochs

    def _divide(self, weights: torch.Tensor) -> float:
        """Divide the gradients by the sum of all batches' weights, which is returned."""
        if self._group.world_size > 1:
            dist.all_reduce(weights)
        # In the order of the shards, whichever rank has had them.
        total: float = sum(weights.tolist())
        weights.zero_()
        if total == 0:
            raise WorkloadError(
                f"weight() of {type(self._workload).__name__} is 0 for all batches of a step: "
                "there is nothing to train on. Leave such samples out of the training split"
            )
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(1 / total)
        return total

    def _new_model(self) -> nn.Module:
        """A whole model with its initial weights, the same on every rank."""
        config = self._config
        seed_generators(derive_seed(config.seed, INIT))
        # It may compute shapes by a pass of its own.
        with refusing_undetermined():
            model = self._workload.model()
        model = model_to_device(model, self._group.device, channels_last=config.channels_last)
        # A model that is in evaluation as a whole comes from where it was used, and is trained.
        fixed = [m for m in model.modules() if not m.training] if model.training else []
        model.train()
        if self._step_rules > 1:
            set_modes(dict.fromkeys(fixed, False))
        return model
