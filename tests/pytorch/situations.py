"""Situations that people's models are in: each is a row of the table."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from torch.nn.utils.parametrize import register_parametrization
from torch.utils.checkpoint import checkpoint
from torch.utils.data import ConcatDataset, Subset, random_split

from tests.pytorch.case import NUM_CLASSES, NUM_INPUTS, Case, adamw
from tests.pytorch.models import Averaged, OnInputs, OnTokens, Plain
from tests.pytorch.optimizers import of_both_kinds
from tests.rank.tiny import PlainDataset


class Shared(nn.Module):
    """One block called three times, its activations computed again in backward."""

    def __init__(self, *, use_reentrant: bool) -> None:
        super().__init__()
        self.use_reentrant = use_reentrant
        self.first = nn.Linear(NUM_INPUTS, 8)
        self.block = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.last = nn.Linear(8, NUM_CLASSES)

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        found = self.first(x)
        for _ in range(3):
            found = checkpoint(self.block, found, use_reentrant=self.use_reentrant)
        return self.last(found)


class Strided(nn.Module):
    """Weights with gaps between their rows, in both of its layers."""

    def __init__(self, last: Tensor | None = None) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(8, 40)[:, :NUM_INPUTS])
        self.middle = nn.Parameter(torch.randn(8, 8).t())
        self.last = nn.Parameter(torch.randn(6, 8)[::2] if last is None else last)

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        found = torch.tanh(x @ self.first.t())
        return torch.tanh(found @ self.middle) @ self.last.t()


class Around(nn.Module):
    """Does something else with the inputs before the plain model has them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Plain()


class Centred(Around):
    """Subtracts a moving mean, a buffer that each pass assigns anew."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(NUM_INPUTS))

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0).detach()
        return self.inner(x - self.mean, tokens)


class Remembering(Around):
    """Registers its buffer in a pass, again and again, or in passes of some samples only."""

    def __init__(self, *, registers_above: float = -99.0) -> None:
        super().__init__()
        self.registers_above = registers_above

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        if self.training and float(x.sum()) > self.registers_above:
            self.register_buffer("scale", x.detach().std(), persistent=False)
        return self.inner(x / getattr(self, "scale", 1.0), tokens)


class Widening(Centred):
    """Its mean is a number at first, and a row then: the checkpoint's has that shape."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.zeros(())


class Observed(nn.Module):
    """Resizes its buffers when it is first fed, as observers of quantization do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(NUM_INPUTS, NUM_CLASSES)
        self.register_buffer("least", torch.empty(0))

    def forward(self, x: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        if self.training:
            found = x.detach().amin(0)
            if self.least.shape != found.shape:
                self.least.resize_(found.shape).fill_(0)
            self.least.copy_(torch.minimum(self.least, found))
        return self.inner(x - self.least)


class Selecting(Around):
    """Keeps some of the last samples: a buffer that is None at first and has any shape then."""

    chosen: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("chosen", None, persistent=False)

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        before = 0.0 if self.chosen is None else self.chosen.sum(0)
        if self.training:
            self.chosen = x[x[:, 0] > 0].detach()
        return self.inner(x - 0.1 * before, tokens)


class MovesByData(nn.Module):
    """The key encoder of a momentum contrast, which `forward` moves behind torch's back."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(NUM_INPUTS, 8), nn.Linear(NUM_INPUTS, 8)
        self.last = nn.Linear(8, NUM_CLASSES)
        self.key.requires_grad_(requires_grad=False)

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        if self.training:
            for key, query in zip(self.key.parameters(), self.query.parameters(), strict=True):
                key.data = key.data * 0.9 + query.data * 0.1
        return self.last(self.query(x) + self.key(x))


class RunningScale(nn.Module):
    """Its statistics are plain numbers, which it saves as extra state."""

    def __init__(self, *, changes_in_forward: bool) -> None:
        super().__init__()
        self.mean, self.count = 0.0, 0
        self.changes_in_forward = changes_in_forward

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.changes_in_forward:
            self.count += 1
            self.mean += (float(x.detach().abs().mean()) - self.mean) / self.count
        return x / (self.mean + 1 + self.count)

    def get_extra_state(self) -> dict[str, Any]:
        return {"mean": self.mean, "count": self.count}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.mean, self.count = state["mean"], state["count"]


class Scaled(nn.Module):
    """A model with running statistics."""

    def __init__(self, *, changes_in_forward: bool) -> None:
        super().__init__()
        self.scale = RunningScale(changes_in_forward=changes_in_forward)
        self.last = nn.Linear(NUM_INPUTS, NUM_CLASSES)

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        found: Tensor = self.last(self.scale(x))
        return found


def count(model: nn.Module, step: int) -> None:
    """A hook that changes extra state between two steps."""
    model.scale.count = step  # type: ignore[union-attr, assignment]  # it is a Scaled


class TwoHeads(nn.Module):
    """The second head is left out, or is used for some samples only."""

    def __init__(self, *, uses_second_above: float = 99.0) -> None:
        super().__init__()
        self.first = nn.Linear(NUM_INPUTS, 8)
        self.last = nn.Linear(8, NUM_CLASSES)
        self.second = nn.Linear(8, NUM_CLASSES)
        self.uses_second_above = uses_second_above

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        found = self.first(x).relu()
        outputs = self.last(found)
        if float(x.sum()) > self.uses_second_above:
            outputs = outputs + self.second(found)
        return outputs


class Putting(Plain):
    """Uses an operation whose result depends on the order of its threads."""

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        ones = torch.ones_like(tokens, dtype=x.dtype)
        added = x.new_zeros(NUM_INPUTS).put_(tokens % NUM_INPUTS, ones)
        return super().forward(x + added, tokens)


class Measured(Putting):
    """Finds out by a pass of its own how many outputs it has."""

    def __init__(self) -> None:
        super().__init__()
        self.num_outputs = self(torch.zeros(2, NUM_INPUTS), torch.zeros(2, 6).long()).shape[1]


def changed(change: Callable[[Plain], object]) -> Callable[[], nn.Module]:
    """Makes the plain model, to which this is done."""

    def model() -> nn.Module:
        made = Plain()
        change(made)
        return made

    return model


partly_frozen = changed(lambda model: model.first.requires_grad_(requires_grad=False))


class KeepsNormFixed(Plain):
    """The idiom of a `train` that leaves a part in evaluation."""

    def train(self, mode: bool = True) -> KeepsNormFixed:
        super().train(mode)
        self.norm.eval()
        return self


def after(at: int, change: Callable[[Any], object]) -> Callable[[Any, int], None]:
    """A hook that changes the model once, between two steps."""

    def after_step(model: Any, step: int) -> None:
        if step == at:
            change(model)

    return after_step


def unfreeze(model: Any) -> None:
    model.first.requires_grad_(requires_grad=True)


def freeze(model: Any) -> None:
    model.first.requires_grad_(requires_grad=False)
    model.norm.eval()


def replace_last(model: Any) -> None:
    model.last = nn.Linear(8, NUM_CLASSES)


def only_last(model: Any) -> torch.optim.Optimizer:
    model.kept = torch.optim.SGD(model.last.parameters(), lr=0.1)
    return model.kept  # type: ignore[no-any-return]  # of any model


def add_group(model: Any) -> None:
    model.kept.add_param_group({"params": list(model.first.parameters())})


class Tied(nn.Module):
    """The embedding's weights are the last layer's, too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NUM_INPUTS, NUM_INPUTS)
        self.last = nn.Linear(NUM_INPUTS, NUM_INPUTS, bias=False)
        self.last.weight = self.embedding.weight

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        return self.last(self.embedding(tokens).mean(1) + x)[:, :NUM_CLASSES]


class SwaAveraged(nn.Module):
    """The average is torch's own AveragedModel."""

    def __init__(self) -> None:
        super().__init__()
        self.live = Plain()
        self.average = torch.optim.swa_utils.AveragedModel(self.live)
        self.average.requires_grad_(requires_grad=False)

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        return self.live(x, tokens)


def hook(model: Plain) -> None:
    """Gradients are clamped by hooks of the parameters and scaled by one of a module."""
    for parameter in model.parameters():
        parameter.register_hook(lambda grad: grad.clamp(-0.01, 0.01))
    model.last.register_full_backward_hook(lambda _, *given: (given[0][0] * 0.5,))


class KeepsGradient(torch.optim.Optimizer):
    """Keeps the last gradient itself, and no copy of it."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.05})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                last = state.get("last", torch.zeros_like(parameter))
                parameter.sub_(group["lr"] * (parameter.grad + 0.5 * last))
                state["last"] = parameter.grad


class WithScale(Around):
    """Its forward pass changes a parameter in place."""

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.inner.last.weight.mul_(0.9)
        return self.inner(x, tokens)


drawing = partial(PlainDataset, transform=True)
"""Makes samples of which each is transformed by chance."""


class ListsSamples(PlainDataset):
    """Gives a list of samples at once, as Hugging Face's datasets do."""

    def __getitems__(self, indices: Any) -> list[dict[str, Any]]:
        return [self[int(index)] for index in indices]


class Custom(nn.Module):
    """A parametrization of one's own."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight - weight.mean()


class LazyModel(nn.Module):
    def __init__(self, *, is_called: bool = False) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(NUM_CLASSES))
        if is_called:
            self(torch.zeros(1, NUM_INPUTS), torch.zeros(1, 6))

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        return self.inner(x)


def two_groups(model: nn.Module) -> torch.optim.Optimizer:
    weights, others = of_both_kinds(model)
    return torch.optim.AdamW(
        [{"params": weights, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=0.01
    )


def only_trained(model: nn.Module) -> torch.optim.Optimizer:
    return adamw(nn.ParameterList(p for p in model.parameters() if p.requires_grad))


def checkpointed(*, use_reentrant: bool) -> nn.Module:
    called = partial(checkpoint, use_reentrant=use_reentrant)
    return OnInputs(nn.Sequential(nn.Linear(16, 8), nn.Dropout(0.3), nn.Tanh()), call=called)


class MixedTypes(nn.Module):
    """Weights of three dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(NUM_INPUTS, 8).to(torch.bfloat16)
        self.middle = nn.Linear(8, 8)
        self.last = nn.Linear(8, NUM_CLASSES).to(torch.float64)

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x.bfloat16()).float()).relu().double()).float()


class ComplexWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.spectrum = nn.Parameter(torch.randn(NUM_INPUTS // 2 + 1, dtype=torch.complex64))
        self.last = nn.Linear(NUM_INPUTS, NUM_CLASSES)

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        return self.last(torch.fft.irfft(torch.fft.rfft(x) * self.spectrum, n=NUM_INPUTS))


def put_by_threads(model: Callable[[], nn.Module]) -> Case:
    said = "put_ has no deterministic algorithm"
    return Case(model, config={"threads_per_worker": 2}, refused=said, refused_from=1)


def sparse(model: Callable[[], nn.Module]) -> Case:
    return Case(model, lambda made: torch.optim.SGD(made.parameters()), refused="embedding.weight")


SITUATIONS: dict[str, Case] = {
    "plain": Case(Plain),
    "accumulation": Case(Plain, config={"accumulation_steps": 2}),
    "clipping": Case(Plain, config={"clip_norm": 0.1}),
    "bf16 autocast": Case(Plain, config={"precision": "bf16"}),
    "torch.compile": Case(Plain, config={"compile": True}),
    "a smaller last batch": Case(Plain, num_train=42),
    "a last batch without samples for some shards": Case(TwoHeads, num_train=38),
    "two groups of parameters": Case(Plain, two_groups),
    "activation checkpointing, reentrant": Case(lambda: checkpointed(use_reentrant=True)),
    "activation checkpointing, not reentrant": Case(lambda: checkpointed(use_reentrant=False)),
    "a shared block under reentrant checkpointing": Case(lambda: Shared(use_reentrant=True)),
    "a shared block under checkpointing that is not reentrant": Case(
        lambda: Shared(use_reentrant=False)
    ),
    "a shared block under reentrant checkpointing, accumulated": Case(
        lambda: Shared(use_reentrant=True), config={"accumulation_steps": 2}
    ),
    "weights with gaps between their rows": Case(Strided),
    "weights with gaps, clipped": Case(Strided, config={"clip_norm": 0.1}),
    "an expanded weight": Case(
        lambda: Strided(torch.randn(NUM_CLASSES, 1).expand(NUM_CLASSES, 8)),
        refused="several of its values lie at one place in memory",
        refused_from=1,
    ),
    "a buffer that forward assigns anew": Case(Centred),
    "a buffer that forward registers": Case(Remembering),
    "a buffer that forward gives another shape": Case(Widening),
    "a buffer that forward resizes in place": Case(Observed),
    "a buffer that some shards register": Case(lambda: Remembering(registers_above=3.0)),
    "a buffer whose shape depends on the samples": Case(Selecting),
    "a head that forward leaves out": Case(TwoHeads),
    "a head that some shards leave out": Case(lambda: TwoHeads(uses_second_above=2.0)),
    "a head that some micro-batches leave out": Case(
        lambda: TwoHeads(uses_second_above=1.0), config={"accumulation_steps": 2}
    ),
    "a frozen part": Case(partly_frozen),
    "a frozen part that the optimizer does not know": Case(partly_frozen, only_trained),
    "a part that thaws": Case(partly_frozen, after_step=after(2, unfreeze)),
    "a part that is frozen and fixed meanwhile": Case(Plain, after_step=after(2, freeze)),
    "a layer that is replaced meanwhile": Case(
        Plain, after_step=after(2, replace_last), refused="last.weight", refused_from=1
    ),
    "a layer whose type changes meanwhile": Case(
        Plain,
        after_step=after(2, lambda model: model.last.to(torch.float64)),
        refused="last.weight",
        refused_from=1,
    ),
    "a group that is added meanwhile": Case(Plain, only_last, after_step=after(2, add_group)),
    "a change after the last step": Case(
        Plain, after_step=after(6, replace_last), refused="last.weight", refused_from=1
    ),
    "a part in evaluation": Case(changed(lambda model: model.norm.eval())),
    "a train() that leaves a part in evaluation": Case(KeepsNormFixed),
    "a model that is in evaluation as a whole": Case(lambda: Plain().eval()),
    "tied weights": Case(Tied),
    "an average of the weights": Case(
        lambda: Averaged(Plain()), after_step=lambda model, _: model.move()
    ),  # type: ignore[operator]  # it is an Averaged
    "torch's AveragedModel": Case(
        SwaAveraged,
        after_step=lambda model, _: model.average.update_parameters(model.live),  # type: ignore[union-attr, operator]  # it is a SwaAveraged
    ),
    "hooks of gradients": Case(changed(hook)),
    "an optimizer that keeps the gradient itself": Case(
        Plain, lambda model: KeepsGradient(model.parameters())
    ),
    "a parameter that forward changes": Case(WithScale, refused="inner.last.weight"),
    "parameters that forward changes through .data": Case(
        MovesByData, refused="'key.bias', 'key.weight'"
    ),
    "extra state that forward changes": Case(
        lambda: Scaled(changes_in_forward=True), refused="state of module 'scale'"
    ),
    "extra state that stays while a step computes": Case(
        lambda: Scaled(changes_in_forward=False), after_step=count
    ),
    "an embedding that forward normalises": Case(
        # A validation normalises it, too: even alone there is nothing to compare.
        lambda: OnTokens(nn.Embedding(10, 8, max_norm=1.0)),
        refused="embedding.weight",
        is_compared=False,
    ),
    "an operation without a deterministic algorithm, on several threads": put_by_threads(Putting),
    "such an operation in `model()`": put_by_threads(Measured),
    "a sparse embedding": sparse(lambda: OnTokens(nn.Embedding(10, 8, sparse=True))),
    "a sparse embedding bag": sparse(
        lambda: OnTokens(nn.EmbeddingBag(10, 8, mode="sum", sparse=True))
    ),
    "SyncBatchNorm": Case(lambda: OnInputs(nn.SyncBatchNorm(4), 4, 4), refused="SyncBatchNorm"),
    "lazy layers": Case(LazyModel, refused="inner.0.weight", refused_from=1),
    "lazy layers that model() has called": Case(lambda: LazyModel(is_called=True)),
    "a parametrization of one's own": Case(
        changed(lambda model: register_parametrization(model.first, "weight", Custom()))
    ),
    "weight_norm": Case(lambda: OnInputs(parametrizations.weight_norm(nn.Linear(16, 8)))),
    "spectral_norm": Case(lambda: OnInputs(parametrizations.spectral_norm(nn.Linear(16, 8)))),
    "orthogonal": Case(lambda: OnInputs(parametrizations.orthogonal(nn.Linear(16, 8)))),
    "pruning": Case(changed(lambda model: prune.l1_unstructured(model.first, "weight", 0.5))),
    "weights of several types": Case(MixedTypes),
    "complex weights": Case(ComplexWeights),
    "samples that draw": Case(Plain, dataset=drawing),
    "random_split of samples that draw": Case(
        Plain, dataset=lambda data: random_split(drawing(data), [30, 6])[0]
    ),
    "Subset of samples that draw": Case(
        Plain, dataset=lambda data: Subset(drawing(data), range(24))
    ),
    "ConcatDataset of samples that draw": Case(
        Plain, dataset=lambda data: ConcatDataset([drawing(data), drawing(data)])
    ),
    "random_split without a generator": Case(
        Plain, dataset=lambda data: random_split(data, [30, 6])[0]
    ),
    "a dataset that lists samples that draw": Case(
        Plain, dataset=partial(ListsSamples, transform=True)
    ),
    "one sample under BatchNorm": Case(Plain, num_train=37, refused="drop_last", refused_from=1),
    "one sample under BatchNorm that is called by name": Case(
        lambda: OnInputs(nn.BatchNorm1d(NUM_INPUTS), call=lambda norm, x: norm(input=x)),
        num_train=37,
        refused="drop_last",
        refused_from=1,
    ),
    "one sample under BatchNorm, left out": Case(Plain, num_train=37, config={"drop_last": True}),
    "one sample with several places under BatchNorm": Case(
        lambda: OnInputs(nn.BatchNorm1d(4), 4, 4), num_train=37
    ),
}
