"""Layers of torch.nn, each between two linear ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.pytorch.case import Case
from tests.pytorch.models import OnInputs, OnTokens

PLACES = (4, 4)
"""The shape of the inputs of a layer for sequences, channels first."""
IMAGE = (1, 4, 4)
VOLUME = (2, 2, 2, 2)
CHANNELS = (4, 2, 2)
BY_DIMENSIONS = {"1d": PLACES, "2d": IMAGE, "3d": VOLUME}


def of(make: Any, *given: Any, on: tuple[int, ...] = (), call: Any = None, **options: Any) -> Case:
    """The layer that is made so, on inputs of that shape."""
    return Case(lambda: OnInputs(make(*given, **options), *on, call=call))


def all_of(names: str, *given: Any, **options: Any) -> dict[str, Case]:
    """Layers of torch.nn that are made in the same way."""
    return {name: of(getattr(nn, name), *given, **options) for name in names.split()}


def on_each(kind: str, *given: Any) -> dict[str, Case]:
    """A layer of torch.nn for sequences, for images and for volumes."""
    return {
        f"{kind}{n}": of(getattr(nn, kind + n), *given, on=on) for n, on in BY_DIMENSIONS.items()
    }


def tokens(make: Any, *given: Any, **options: Any) -> Case:
    return Case(lambda: OnTokens(make(*given, **options)))


def with_itself(module: nn.Module, x: Tensor) -> Any:
    return module(x, x.flip(0))


def attention(module: nn.Module, x: Tensor) -> Any:
    return module(x, x, x)


def unpooled(module: Any, x: Tensor) -> Tensor:
    return module[1](*module[0](x))  # type: ignore[no-any-return]  # as it has the types


def pooling() -> nn.Module:
    return nn.ModuleList([nn.MaxPool2d(2, return_indices=True), nn.MaxUnpool2d(2)])


LAYERS: dict[str, Case] = {
    **all_of("ELU GELU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid Mish PReLU"),
    **all_of("ReLU ReLU6 RReLU SELU CELU Sigmoid SiLU Softplus Softshrink Softsign Tanh"),
    **all_of("Tanhshrink GLU"),
    **all_of("Softmax Softmin LogSoftmax", 1),
    "Softmax2d": of(nn.Softmax2d, on=CHANNELS),
    "Threshold": of(nn.Threshold, 0.1, 0.0),
    "Linear": of(nn.Linear, 16, 8),
    "Identity": of(nn.Identity),
    "Bilinear": of(nn.Bilinear, 16, 16, 4, call=with_itself),
    "Conv1d": of(nn.Conv1d, 4, 3, 3, padding=1, on=PLACES),
    "Conv2d": of(nn.Conv2d, 1, 2, 3, padding=1, on=IMAGE),
    "Conv2d, in groups, reflected": of(
        nn.Conv2d, 4, 4, 3, padding=1, groups=2, padding_mode="reflect", on=CHANNELS
    ),
    "Conv3d": of(nn.Conv3d, 2, 2, 3, padding=1, on=VOLUME),
    "ConvTranspose1d": of(nn.ConvTranspose1d, 4, 2, 3, on=PLACES),
    "ConvTranspose2d": of(nn.ConvTranspose2d, 1, 2, 3, padding=1, on=IMAGE),
    "ConvTranspose3d": of(nn.ConvTranspose3d, 2, 2, 2, on=VOLUME),
    "Unfold": of(nn.Unfold, 2, on=IMAGE),
    "Fold": of(nn.Fold, (3, 3), 2, on=(4, 4)),
    **on_each("MaxPool", 2),
    "MaxUnpool2d": of(pooling, on=IMAGE, call=unpooled),
    "FractionalMaxPool2d": of(nn.FractionalMaxPool2d, 2, output_size=2, on=IMAGE),
    **on_each("AvgPool", 2),
    "LPPool2d": of(nn.LPPool2d, 2, 2, on=IMAGE),
    "AdaptiveMaxPool2d": of(nn.AdaptiveMaxPool2d, 2, on=IMAGE),
    "AdaptiveAvgPool2d": of(nn.AdaptiveAvgPool2d, 3, on=IMAGE),
    **all_of("ReflectionPad2d ReplicationPad2d CircularPad2d ZeroPad2d", 1, on=IMAGE),
    "Upsample, nearest": of(nn.Upsample, scale_factor=2, on=IMAGE),
    "Upsample, bilinear": of(nn.Upsample, scale_factor=2, mode="bilinear", on=IMAGE),
    "PixelShuffle": of(nn.PixelShuffle, 2, on=CHANNELS),
    "PixelUnshuffle": of(nn.PixelUnshuffle, 2, on=IMAGE),
    "ChannelShuffle": of(nn.ChannelShuffle, 2, on=CHANNELS),
    "BatchNorm1d": of(nn.BatchNorm1d, 16),
    "BatchNorm2d": of(nn.BatchNorm2d, 4, on=CHANNELS),
    "BatchNorm3d": of(nn.BatchNorm3d, 2, on=VOLUME),
    "BatchNorm1d, cumulative": of(nn.BatchNorm1d, 16, momentum=None),
    "InstanceNorm2d, with statistics": of(
        nn.InstanceNorm2d, 4, affine=True, track_running_stats=True, on=CHANNELS
    ),
    "GroupNorm": of(nn.GroupNorm, 2, 16),
    **all_of("LayerNorm RMSNorm", 16),
    "LocalResponseNorm": of(nn.LocalResponseNorm, 2, on=CHANNELS),
    "Dropout": of(nn.Dropout),
    "Dropout1d": of(nn.Dropout1d, on=PLACES),
    "Dropout2d": of(nn.Dropout2d, on=CHANNELS),
    "Dropout3d": of(nn.Dropout3d, on=VOLUME),
    "AlphaDropout": of(nn.AlphaDropout),
    "FeatureAlphaDropout": of(nn.FeatureAlphaDropout, on=CHANNELS),
    "RNN": of(nn.RNN, 4, 4, batch_first=True, on=PLACES),
    "LSTM, two layers with dropout": of(nn.LSTM, 4, 4, 2, dropout=0.2, batch_first=True, on=PLACES),
    "LSTM, both directions, projected": of(
        nn.LSTM, 4, 4, bidirectional=True, proj_size=2, batch_first=True, on=PLACES
    ),
    "GRU": of(nn.GRU, 4, 4, batch_first=True, on=PLACES),
    **all_of("RNNCell LSTMCell GRUCell", 16, 8),
    "MultiheadAttention": of(
        nn.MultiheadAttention, 4, 2, dropout=0.1, batch_first=True, on=PLACES, call=attention
    ),
    "TransformerEncoderLayer": of(nn.TransformerEncoderLayer, 4, 2, 8, batch_first=True, on=PLACES),
    "TransformerDecoderLayer": of(
        nn.TransformerDecoderLayer, 4, 2, 8, batch_first=True, on=PLACES, call=with_itself
    ),
    "Transformer": of(nn.Transformer, 4, 2, 1, 1, 8, batch_first=True, on=PLACES, call=with_itself),
    "CosineSimilarity": of(nn.CosineSimilarity, 1, on=PLACES, call=with_itself),
    "PairwiseDistance": of(nn.PairwiseDistance, on=PLACES, call=with_itself),
    "Flatten and Unflatten": of(
        lambda: nn.Sequential(nn.Flatten(), nn.Unflatten(1, (4, 4))), on=PLACES
    ),
    "Embedding": tokens(nn.Embedding, 10, 8),
    "Embedding with a padding index, frequencies": tokens(
        nn.Embedding, 10, 8, padding_idx=0, scale_grad_by_freq=True
    ),
    **{
        f"EmbeddingBag, {mode}": tokens(nn.EmbeddingBag, 10, 8, mode=mode)
        for mode in ("mean", "sum", "max")
    },
}


def of_classes(loss: Callable[[Tensor, Tensor], Tensor]) -> Case:
    return Case(lambda: OnInputs(nn.Linear(16, 8)), loss=loss)


def of_one_hot(loss: nn.Module, prepare: Callable[[Tensor], Tensor] = torch.sigmoid) -> Case:
    def computed(outputs: Tensor, targets: Tensor) -> Tensor:
        one_hot = nn.functional.one_hot(targets, 3).float()
        return loss(prepare(outputs), one_hot)  # type: ignore[no-any-return]  # a loss

    return of_classes(computed)


LOSSES: dict[str, Case] = {
    "CrossEntropyLoss, smoothed": of_classes(nn.CrossEntropyLoss(label_smoothing=0.1)),
    "NLLLoss": of_classes(lambda x, target: nn.NLLLoss()(x.log_softmax(1), target)),
    "MultiMarginLoss": of_classes(nn.MultiMarginLoss()),
    **{
        name: of_one_hot(getattr(nn, name)())
        for name in ("L1Loss", "MSELoss", "SmoothL1Loss", "HuberLoss", "BCELoss")
    },
    "BCEWithLogitsLoss": of_one_hot(nn.BCEWithLogitsLoss(), nn.Identity()),
    "KLDivLoss": of_one_hot(nn.KLDivLoss(reduction="batchmean"), nn.LogSoftmax(1)),
    **{
        name: of_one_hot(getattr(nn, name)(), nn.Identity())
        for name in ("PoissonNLLLoss", "SoftMarginLoss", "MultiLabelSoftMarginLoss")
    },
}
