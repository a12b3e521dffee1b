"""Layers of torch.nn, each between two linear ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.pytorch.case import Case
from tests.pytorch.models import OnInputs, OnTokens

PLACES = (4, 4)
"""The shape of the inputs of a layer for sequences, channels first."""
IMAGE = (1, 4, 4)
VOLUME = (2, 2, 2, 2)


def layer(make: Callable[[], nn.Module], *shape: int, call: Any = None) -> Case:
    return Case(lambda: OnInputs(make(), *shape, call=call))


def tokens(make: Callable[[], nn.Module]) -> Case:
    return Case(lambda: OnTokens(make()))


def with_itself(module: nn.Module, x: Tensor) -> Any:
    return module(x, x.flip(0))


def attention(module: nn.Module, x: Tensor) -> Any:
    return module(x, x, x)


def unpooled(module: Any, x: Tensor) -> Tensor:
    return module[1](*module[0](x))  # type: ignore[no-any-return]  # as it has the types


def channels(make: Any, **options: Any) -> Callable[[], nn.Module]:
    return partial(make, 1, 2, 3, padding=1, **options)


ACTIVATIONS = (
    "ELU", "GELU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU",
    "LogSigmoid", "Mish", "PReLU", "ReLU", "ReLU6", "RReLU", "SELU", "CELU", "Sigmoid", "SiLU",
    "Softplus", "Softshrink", "Softsign", "Tanh", "Tanhshrink",
)  # fmt: skip

LAYERS: dict[str, Case] = {
    **{name: layer(getattr(nn, name)) for name in ACTIVATIONS},
    "GLU": layer(nn.GLU),
    "Softmax": layer(partial(nn.Softmax, 1)),
    "Softmin": layer(partial(nn.Softmin, 1)),
    "LogSoftmax": layer(partial(nn.LogSoftmax, 1)),
    "Softmax2d": layer(nn.Softmax2d, 4, 2, 2),
    "Threshold": layer(partial(nn.Threshold, 0.1, 0.0)),
    "Linear": layer(partial(nn.Linear, 16, 8)),
    "Identity": layer(nn.Identity),
    "Bilinear": layer(partial(nn.Bilinear, 16, 16, 4), call=with_itself),
    "Conv1d": layer(partial(nn.Conv1d, 4, 3, 3, padding=1), *PLACES),
    "Conv2d": layer(channels(nn.Conv2d), *IMAGE),
    "Conv2d, in groups, reflected": layer(
        partial(nn.Conv2d, 4, 4, 3, padding=1, groups=2, padding_mode="reflect"), 4, 2, 2
    ),
    "Conv3d": layer(partial(nn.Conv3d, 2, 2, 3, padding=1), *VOLUME),
    "ConvTranspose1d": layer(partial(nn.ConvTranspose1d, 4, 2, 3), *PLACES),
    "ConvTranspose2d": layer(channels(nn.ConvTranspose2d), *IMAGE),
    "ConvTranspose3d": layer(partial(nn.ConvTranspose3d, 2, 2, 2), *VOLUME),
    "Unfold": layer(partial(nn.Unfold, 2), *IMAGE),
    "Fold": layer(partial(nn.Fold, (3, 3), 2), 4, 4),
    "MaxPool1d": layer(partial(nn.MaxPool1d, 2), *PLACES),
    "MaxPool2d": layer(partial(nn.MaxPool2d, 2), *IMAGE),
    "MaxPool3d": layer(partial(nn.MaxPool3d, 2), *VOLUME),
    "MaxUnpool2d": layer(
        lambda: nn.ModuleList([nn.MaxPool2d(2, return_indices=True), nn.MaxUnpool2d(2)]),
        *IMAGE,
        call=unpooled,
    ),
    "FractionalMaxPool2d": layer(partial(nn.FractionalMaxPool2d, 2, output_size=2), *IMAGE),
    "AvgPool1d": layer(partial(nn.AvgPool1d, 2), *PLACES),
    "AvgPool2d": layer(partial(nn.AvgPool2d, 2), *IMAGE),
    "AvgPool3d": layer(partial(nn.AvgPool3d, 2), *VOLUME),
    "LPPool2d": layer(partial(nn.LPPool2d, 2, 2), *IMAGE),
    "AdaptiveMaxPool2d": layer(partial(nn.AdaptiveMaxPool2d, 2), *IMAGE),
    "AdaptiveAvgPool2d": layer(partial(nn.AdaptiveAvgPool2d, 3), *IMAGE),
    "ReflectionPad2d": layer(partial(nn.ReflectionPad2d, 1), *IMAGE),
    "ReplicationPad2d": layer(partial(nn.ReplicationPad2d, 1), *IMAGE),
    "CircularPad2d": layer(partial(nn.CircularPad2d, 1), *IMAGE),
    "ZeroPad2d": layer(partial(nn.ZeroPad2d, 1), *IMAGE),
    "Upsample, nearest": layer(partial(nn.Upsample, scale_factor=2), *IMAGE),
    "Upsample, bilinear": layer(partial(nn.Upsample, scale_factor=2, mode="bilinear"), *IMAGE),
    "PixelShuffle": layer(partial(nn.PixelShuffle, 2), 4, 2, 2),
    "PixelUnshuffle": layer(partial(nn.PixelUnshuffle, 2), *IMAGE),
    "ChannelShuffle": layer(partial(nn.ChannelShuffle, 2), 4, 2, 2),
    "BatchNorm1d": layer(partial(nn.BatchNorm1d, 16)),
    "BatchNorm2d": layer(partial(nn.BatchNorm2d, 4), 4, 2, 2),
    "BatchNorm3d": layer(partial(nn.BatchNorm3d, 2), *VOLUME),
    "BatchNorm1d, cumulative": layer(partial(nn.BatchNorm1d, 16, momentum=None)),
    "InstanceNorm2d, with statistics": layer(
        partial(nn.InstanceNorm2d, 4, affine=True, track_running_stats=True), 4, 2, 2
    ),
    "GroupNorm": layer(partial(nn.GroupNorm, 2, 16)),
    "LayerNorm": layer(partial(nn.LayerNorm, 16)),
    "RMSNorm": layer(partial(nn.RMSNorm, 16)),
    "LocalResponseNorm": layer(partial(nn.LocalResponseNorm, 2), 4, 2, 2),
    "Dropout": layer(nn.Dropout),
    "Dropout1d": layer(nn.Dropout1d, *PLACES),
    "Dropout2d": layer(nn.Dropout2d, 4, 2, 2),
    "Dropout3d": layer(nn.Dropout3d, *VOLUME),
    "AlphaDropout": layer(nn.AlphaDropout),
    "FeatureAlphaDropout": layer(nn.FeatureAlphaDropout, 4, 2, 2),
    "RNN": layer(partial(nn.RNN, 4, 4, batch_first=True), *PLACES),
    "LSTM, two layers with dropout": layer(
        partial(nn.LSTM, 4, 4, 2, dropout=0.2, batch_first=True), *PLACES
    ),
    "LSTM, both directions, projected": layer(
        partial(nn.LSTM, 4, 4, bidirectional=True, proj_size=2, batch_first=True), *PLACES
    ),
    "GRU": layer(partial(nn.GRU, 4, 4, batch_first=True), *PLACES),
    "RNNCell": layer(partial(nn.RNNCell, 16, 8)),
    "LSTMCell": layer(partial(nn.LSTMCell, 16, 8)),
    "GRUCell": layer(partial(nn.GRUCell, 16, 8)),
    "MultiheadAttention": layer(
        partial(nn.MultiheadAttention, 4, 2, dropout=0.1, batch_first=True),
        *PLACES,
        call=attention,
    ),
    "TransformerEncoderLayer": layer(
        partial(nn.TransformerEncoderLayer, 4, 2, 8, batch_first=True), *PLACES
    ),
    "TransformerDecoderLayer": layer(
        partial(nn.TransformerDecoderLayer, 4, 2, 8, batch_first=True), *PLACES, call=with_itself
    ),
    "Transformer": layer(
        partial(nn.Transformer, 4, 2, 1, 1, 8, batch_first=True), *PLACES, call=with_itself
    ),
    "CosineSimilarity": layer(partial(nn.CosineSimilarity, 1), *PLACES, call=with_itself),
    "PairwiseDistance": layer(nn.PairwiseDistance, *PLACES, call=with_itself),
    "Flatten and Unflatten": layer(
        lambda: nn.Sequential(nn.Flatten(), nn.Unflatten(1, (4, 4))), *PLACES
    ),
    "Embedding": tokens(partial(nn.Embedding, 10, 8)),
    "Embedding with a padding index, frequencies": tokens(
        partial(nn.Embedding, 10, 8, padding_idx=0, scale_grad_by_freq=True)
    ),
    "EmbeddingBag, mean": tokens(partial(nn.EmbeddingBag, 10, 8)),
    "EmbeddingBag, sum": tokens(partial(nn.EmbeddingBag, 10, 8, mode="sum")),
    "EmbeddingBag, max": tokens(partial(nn.EmbeddingBag, 10, 8, mode="max")),
}


def of_classes(loss: nn.Module) -> Case:
    return Case(lambda: OnInputs(nn.Linear(16, 8)), loss=loss)


def of_log_probabilities(loss: nn.Module) -> Case:
    return Case(
        lambda: OnInputs(nn.Linear(16, 8)), loss=lambda x, target: loss(x.log_softmax(1), target)
    )


def of_one_hot(loss: nn.Module, prepare: Callable[[Tensor], Tensor] = torch.sigmoid) -> Case:
    def computed(outputs: Tensor, targets: Tensor) -> Tensor:
        one_hot = nn.functional.one_hot(targets, 3).float()
        return loss(prepare(outputs), one_hot)  # type: ignore[no-any-return]  # a loss

    return Case(lambda: OnInputs(nn.Linear(16, 8)), loss=computed)


LOSSES: dict[str, Case] = {
    "CrossEntropyLoss, smoothed": of_classes(nn.CrossEntropyLoss(label_smoothing=0.1)),
    "NLLLoss": of_log_probabilities(nn.NLLLoss()),
    "MultiMarginLoss": of_classes(nn.MultiMarginLoss()),
    "L1Loss": of_one_hot(nn.L1Loss()),
    "MSELoss": of_one_hot(nn.MSELoss()),
    "SmoothL1Loss": of_one_hot(nn.SmoothL1Loss()),
    "HuberLoss": of_one_hot(nn.HuberLoss()),
    "BCELoss": of_one_hot(nn.BCELoss()),
    "BCEWithLogitsLoss": of_one_hot(nn.BCEWithLogitsLoss(), lambda outputs: outputs),
    "KLDivLoss": of_one_hot(
        nn.KLDivLoss(reduction="batchmean"), lambda outputs: outputs.log_softmax(1)
    ),
    "PoissonNLLLoss": of_one_hot(nn.PoissonNLLLoss(), lambda outputs: outputs),
    "SoftMarginLoss": of_one_hot(nn.SoftMarginLoss(), lambda outputs: outputs),
    "MultiLabelSoftMarginLoss": of_one_hot(nn.MultiLabelSoftMarginLoss(), lambda outputs: outputs),
}
