"""States as other people's models, optimizers and schedules have them: kept, or refused.

Each is trained to its end, and again with an end in the middle and another process' objects after
it: the bits are the same. What cannot be kept is refused before the first step.
"""

from __future__ import annotations

from collections import Counter, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from tests.rank.alone import run
from tests.rank.digests import digest_of_training
from tests.rank.tiny import Tiny, TinySettings
from train_core.client.checkpoints import export_weights
from train_core.config import TrainConfig
from train_core.errors import WorkloadError
from train_core.rank.checkpoint.init_from import InitialState
from train_core.rank.checkpoint.packing import first_difference
from train_core.rank.checkpoint.reader import load_state
from train_core.rank.checkpoint.state import load_optimizer_state, model_state, optimizer_state
from train_core.scoring.evaluate import load_model
from train_core.storage.records.run_record import Origin
from train_core.storage.run_folder import RunFolder
from train_core.workload import Batch

Moments = namedtuple("Moments", "mean seen")  # noqa: PYI024 (as users write them)


class Plain(Tiny):
    """The tiny workload without a schedule and an average of its own."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))

    def schedule(self, optimizer: torch.optim.Optimizer, total_steps: int) -> Any:
        return None


class Warmed(Plain):
    """M8: MultiStepLR's milestones are a Counter, and SequentialLR loads a state by them."""

    def schedule(self, optimizer: torch.optim.Optimizer, total_steps: int) -> Any:
        first = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3)
        return lr_scheduler.SequentialLR(
            optimizer, [first, lr_scheduler.MultiStepLR(optimizer, [2, 4])], [6]
        )


class NumpyRates(Plain):
    """M10: the rates are numpy's numbers."""

    def schedule(self, optimizer: torch.optim.Optimizer, total_steps: int) -> Any:
        return lr_scheduler.LambdaLR(
            optimizer, lambda step: 0.5 * (1 + np.cos(np.pi * step / total_steps))
        )


class Float32Rates(Plain):
    """Arithmetic of numpy's float32 is another one than that of Python's floats."""

    def schedule(self, optimizer: torch.optim.Optimizer, total_steps: int) -> Any:
        return lr_scheduler.MultiplicativeLR(optimizer, lambda _: np.float32(0.93))


class MasterWeights(torch.optim.Optimizer):
    """SGD whose state has fp32 weights beside bf16 ones, in containers of every kind."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})
        self.state["shared"] = {"steps": 0, "norms": [], "seen": Counter()}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        shared = self.state["shared"]
        shared["steps"] += 1
        shared["seen"][shared["steps"] % 3] += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["master"] = parameter.float().clone()
                    state["moments"] = Moments(torch.zeros_like(state["master"]), 0)
                    state["past"] = []
                mean, seen = state["moments"]
                mean = 0.9 * mean + parameter.grad.float()
                state["moments"] = Moments(mean, seen + 1)
                state["past"] = [*state["past"][-1:], mean.norm()]
                state["master"] -= group["lr"] * mean / (1 + sum(state["past"]) + shared["steps"])
                parameter.copy_(state["master"])


class Bf16(Plain):
    """M7 and M9."""

    def model(self) -> nn.Module:
        return super().model().bfloat16()

    def prepare(self, columns: Any, random: Any) -> Batch:
        batch = super().prepare(columns, random)
        return batch | {"inputs": batch["inputs"].bfloat16()}

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return MasterWeights(model.parameters(), 0.05)

    def loss(self, outputs: Any, batch: Batch) -> Tensor:
        return nn.functional.cross_entropy(outputs.float(), batch["targets"])


class Scaled(nn.Module):
    """M12 and M15: an extra state, and a buffer of training that the state dict leaves out."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 3)
        self.calls: dict[str, Any] = {"calls": 0, "range": (0.0, 1.0), "last": torch.zeros(2)}
        self.register_buffer("seen", torch.ones(8), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.calls["calls"] += 1
            self.calls["last"] = inputs[0, :2].detach().clone()
            self.seen = 0.9 * self.seen + 0.1 * inputs.detach().abs().mean(0)
        return self.inner(inputs / self.seen) * (1 + 0.01 * self.calls["calls"])

    def get_extra_state(self) -> dict[str, Any]:
        return dict(self.calls)

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.calls = dict(state)


class Extra(Plain):
    def model(self) -> nn.Module:
        return nn.Sequential(Scaled())


class Later(Plain):
    """A group of parameters that the optimizer gets while it trains."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        assert isinstance(model, nn.Sequential)
        self.made = torch.optim.AdamW(model[2].parameters(), 0.01)
        return self.made

    def after_step(self, model: nn.Module, step: int) -> None:
        super().after_step(model, step)
        if step == 3:
            assert isinstance(model, nn.Sequential)
            self.made.add_param_group({"params": model[0].parameters(), "lr": 0.002})


CONFIG: dict[str, Any] = {"epochs": 2, "num_shards": 1, "keep_last": 9}
KEPT = [Warmed, NumpyRates, Float32Rates, Bf16, Extra, Later]


@pytest.mark.parametrize("workload", KEPT, ids=lambda one: one.__name__)
@pytest.mark.parametrize("step", [1, 4, 7])
def test_a_training_that_ended_in_the_middle_goes_on_to_the_same_bits(
    workload: type[Tiny], step: int, tmp_path: Path
) -> None:
    name = {"workload": f"{__name__}:{workload.__name__}"}
    whole, cut = RunFolder(str(tmp_path), "whole"), RunFolder(str(tmp_path), "cut")
    run(whole, **CONFIG, **name)
    run(cut, max_steps=step, **CONFIG, **name)
    run(cut, attempt=2, **CONFIG, **name)
    assert digest_of_training(cut) == digest_of_training(whole)


def test_a_model_is_the_same_wherever_it_is_loaded(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path), "run")
    config: dict[str, Any] = CONFIG | {"workload": f"{__name__}:Extra"}
    run(folder, **config)
    (newest, *_) = reversed(folder.checkpoints())
    asked = TrainConfig(**config, batch_size=32, eval_batch_size=16)
    _, evaluated, _ = load_model(folder.url, asked, str(newest.name))
    assert isinstance(evaluated, nn.Sequential)
    scaled = evaluated[0]
    assert isinstance(scaled, Scaled)
    assert scaled.calls["calls"] == 10
    assert not torch.equal(scaled.seen, torch.ones(8))
    state = load_state(folder.store, newest)
    assert torch.equal(scaled.seen, state["buffers"]["0.seen"])
    assert torch.equal(scaled.calls["last"], state["model"]["0._extra_state"]["last"])
    # Its weights as a file of their own are all that a new run begins with, the buffer aside.
    result = export_weights(folder, newest, str(tmp_path / "all.safetensors"))
    new = Extra(TinySettings()).model()
    origin = Origin(uri=result.uri, digest=result.digest)
    InitialState.read(origin, asked).give_weights(new)
    assert first_difference(state["model"], model_state(new)) == ""


class OwnParameter(Plain):
    """M11: a parameter of the loss, which no gradient exchange and no checkpoint knows."""

    def __init__(self, settings: TinySettings) -> None:
        super().__init__(settings)
        self.temperature = nn.Parameter(torch.ones(()))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW([*model.parameters(), self.temperature], 0.01)


class SparseBuffer(Plain):
    """M14."""

    def model(self) -> nn.Module:
        model = super().model()
        model.register_buffer("adjacency", torch.eye(4).to_sparse())
        return model


class Unknown(Plain):
    """A state of a class of its own."""

    def state_dict(self) -> dict[str, Any]:
        return {"settings": self.settings}


REFUSED = [
    (OwnParameter, "1 of the optimizer's 5 parameters are not the model's"),
    (SparseBuffer, "the tensor at model/adjacency has the layout torch.sparse_coo"),
    (Unknown, "the state holds a TinySettings at workload/settings"),
]


@pytest.mark.parametrize(("workload", "why"), REFUSED, ids=lambda one: getattr(one, "__name__", ""))
def test_what_cannot_be_kept_is_refused_before_the_first_step(
    workload: type[Tiny], why: str, tmp_path: Path
) -> None:
    folder = RunFolder(str(tmp_path), "run")
    with pytest.raises(WorkloadError, match=why):
        run(folder, **CONFIG, workload=f"{__name__}:{workload.__name__}")
    assert not folder.checkpoints()
    assert not folder.store.names("journal")


OPTIMIZERS = sorted(
    name
    for name, one in vars(torch.optim).items()
    if isinstance(one, type) and issubclass(one, torch.optim.Optimizer) and name != "Optimizer"
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_of_torch_comes_back_as_it_was(name: str, dtype: torch.dtype) -> None:
    def made() -> tuple[nn.Linear, torch.optim.Optimizer]:
        model = nn.Linear(4, 3, bias=name != "Muon").to(dtype)
        return model, getattr(torch.optim, name)(model.parameters(), lr=0.01)

    def step(model: nn.Linear, optimizer: torch.optim.Optimizer, seed: int) -> None:
        inputs = torch.randn(5, 4, generator=torch.Generator().manual_seed(seed)).to(dtype)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = model(inputs).float().square().mean()
            loss.backward()
            for parameter in model.parameters():
                assert parameter.grad is not None
                if name == "SparseAdam":
                    parameter.grad = parameter.grad.to_sparse()
            return loss

        # L-BFGS computes the loss several times.
        optimizer.step(closure)

    model, optimizer = made()
    step(model, optimizer, 1)
    step(model, optimizer, 2)
    other, fresh = made()
    other.load_state_dict(model.state_dict())
    load_optimizer_state(other, fresh, optimizer_state(model, optimizer))
    for seed in (3, 4):
        step(model, optimizer, seed)
        step(other, fresh, seed)
    for name_, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name_])
