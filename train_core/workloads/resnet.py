"""ResNet-18 with torchvision's parameter names, and how its published weights are loaded.

K. He, X. Zhang, S. Ren, J. Sun: Deep residual learning for image recognition, 2015.
"""

from __future__ import annotations

import posixpath

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor, nn

from train_core.errors import DataError
from train_core.storage.objects.store import DataStore


class TrimmedConv2d(nn.Conv2d):
    """A convolution that leaves out the kernel's taps that would only ever see the padding.

    On a small image ResNet's last features are 1 x 1, where eight of a 3 x 3 kernel's nine taps
    meet nothing but zeros; most of a step's time would go into them. The result and its
    gradients are the plain convolution's, up to rounding.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (as in torch)
        """Features (N, out_channels, H / stride, W / stride)."""
        (height, width), (rows, columns) = input.shape[-2:], self.kernel_size
        if (height, width) != (1, 1) or self.padding != (rows // 2, columns // 2):
            output: Tensor = super().forward(input)
            return output
        centre = self.weight[:, :, rows // 2, columns // 2]
        return nn.functional.linear(input.flatten(1), centre)[:, :, None, None]


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut, which a 1 x 1 convolution adapts if it must."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = TrimmedConv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = TrimmedConv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.downsample: nn.Module | None = None
        if stride != 1 or in_channels != out_channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False),
                nn.BatchNorm2d(out_channels),
            )

    def forward(self, inputs: Tensor) -> Tensor:
        """Features (N, out_channels, H / stride, W / stride)."""
        shortcut = inputs if self.downsample is None else self.downsample(inputs)
        features = self.relu(self.bn1(self.conv1(inputs)))
        features = self.bn2(self.conv2(features))
        features += shortcut
        output: Tensor = self.relu(features)
        return output


class ResNet18(nn.Module):
    """ResNet-18 for images of `in_channels` channels and any size from 28 x 28 up.

    Names, order, shapes and initial distributions of its parameters are those of
    `torchvision.models.resnet18`.
    """

    def __init__(self, in_channels: int = 3, num_classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 64, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = _stage(64, 64, stride=1)
        self.layer2 = _stage(64, 128, stride=2)
        self.layer3 = _stage(128, 256, stride=2)
        self.layer4 = _stage(256, 512, stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Logits (N, num_classes) of images (N, in_channels, H, W)."""
        features = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        features = self.layer4(self.layer3(self.layer2(self.layer1(features))))
        logits: Tensor = self.fc(self.avgpool(features).flatten(1))
        return logits


def load_published_weights(model: ResNet18, url: str) -> None:
    """Load torchvision's weights from a safetensors file at an fsspec URL into `model`.

    The rule by which the first and the last layer are adapted:

    - `conv1.weight` for a model of one channel is the sum over the file's three input
      channels: a grey image gives what the same image gave in red, green and blue.
    - `fc` keeps its initial values if the file has another number of classes.
    - `num_batches_tracked`, which older files lack, keeps its 0; nothing is computed from it.

    Raises DataError, which lists every other tensor that is missing, unexpected or of another
    shape; the model is then as it was.
    """
    published = _read_safetensors(url)
    wanted = model.state_dict()
    adapted = _adapted(published, wanted)
    faults = [f"missing {name}" for name in wanted if name not in adapted]
    faults += [f"unexpected {name}" for name in adapted if name not in wanted]
    faults += [
        f"{name} of shape {tuple(tensor.shape)} instead of {tuple(wanted[name].shape)}"
        for name, tensor in adapted.items()
        if name in wanted and tensor.shape != wanted[name].shape
    ]
    if faults:
        raise DataError(f"{url} does not hold ResNet-18's weights: {'; '.join(faults)}")
    model.load_state_dict(adapted)


def _adapted(published: dict[str, Tensor], wanted: dict[str, Tensor]) -> dict[str, Tensor]:
    """The published tensors after the rule that `load_published_weights` documents."""
    counters = {k: v for k, v in wanted.items() if k.endswith(".num_batches_tracked")}
    adapted = counters | published
    first, last = adapted.get("conv1.weight"), adapted.get("fc.weight")
    one_channel = wanted["conv1.weight"].shape[1] == 1
    if first is not None and one_channel and first.shape[1:2] == (3,):
        adapted["conv1.weight"] = first.sum(dim=1, keepdim=True)
    if last is not None and last.shape[:1] != wanted["fc.weight"].shape[:1]:
        adapted |= {name: wanted[name] for name in ("fc.weight", "fc.bias")}
    return adapted


def _read_safetensors(url: str) -> dict[str, Tensor]:
    folder, name = posixpath.split(url)
    try:
        return safetensors.torch.load(DataStore(folder).read(name))
    except FileNotFoundError:
        raise DataError(f"weights {url} are missing: give the URL of a safetensors file") from None
    except SafetensorError as error:
        raise DataError(f"weights {url} are not a whole safetensors file: {error}") from error


def _stage(in_channels: int, out_channels: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        BasicBlock(in_channels, out_channels, stride),
        BasicBlock(out_channels, out_channels, 1),
    )
