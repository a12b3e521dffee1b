from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from train_core.errors import DataError
from train_core.storage.objects.store import Store
from train_core.workloads.resnet import ResNet18, TrimmedConv2d, load_published_weights

# As torchvision.models.resnet18 has them.
PUBLISHED_SHAPES = {
    "conv1.weight": (64, 3, 7, 7),
    "bn1.running_var": (64,),
    "layer1.0.conv1.weight": (64, 64, 3, 3),
    "layer1.1.bn2.bias": (64,),
    "layer2.0.conv1.weight": (128, 64, 3, 3),
    "layer2.0.downsample.0.weight": (128, 64, 1, 1),
    "layer2.0.downsample.1.num_batches_tracked": (),
    "layer3.0.downsample.1.running_mean": (256,),
    "layer4.0.downsample.0.weight": (512, 256, 1, 1),
    "layer4.1.conv2.weight": (512, 512, 3, 3),
    "fc.weight": (1000, 512),
    "fc.bias": (1000,),
}


@pytest.fixture(scope="module")
def published() -> ResNet18:
    """Stands for the published model: its names and shapes, other numbers."""
    torch.manual_seed(0)
    model = ResNet18()
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_()
    return model.eval()


@pytest.fixture
def weights(published: ResNet18, tmp_path: Path) -> str:
    return write(str(tmp_path), published.state_dict())


def write(folder: str, tensors: dict[str, torch.Tensor]) -> str:
    Store(folder).write("resnet18.safetensors", safetensors.torch.save(tensors))
    return f"{folder}/resnet18.safetensors"


def test_names_and_shapes_are_torchvisions() -> None:
    state = ResNet18().state_dict()
    assert len(state) == 122
    assert next(iter(state)) == "conv1.weight"
    assert {name: tuple(state[name].shape) for name in PUBLISHED_SHAPES} == PUBLISHED_SHAPES
    assert sum(p.numel() for p in ResNet18().parameters()) == 11_689_512


def test_it_costs_what_torchvision_states() -> None:
    with FlopCounterMode(display=False) as counter:
        ResNet18().eval()(torch.zeros(1, 3, 224, 224))
    assert round(counter.get_total_flops() / 2e9, 3) == 1.814


def test_first_and_last_layer_adapt() -> None:
    model = ResNet18(in_channels=1, num_classes=10).eval()
    assert model.conv1.weight.shape == (64, 1, 7, 7)
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_published_weights_load_as_they_are(weights: str, published: ResNet18) -> None:
    model = ResNet18()
    load_published_weights(model, weights)
    state = model.state_dict()
    assert all(torch.equal(state[name], t) for name, t in published.state_dict().items())


@pytest.mark.promise("published-weights")
def test_a_grey_image_gives_what_it_gave_in_three_equal_channels(
    weights: str, published: ResNet18
) -> None:
    model = ResNet18(in_channels=1).eval()
    load_published_weights(model, weights)
    grey = torch.rand(2, 1, 28, 28)
    torch.testing.assert_close(
        model(grey), published(grey.expand(-1, 3, -1, -1)), rtol=1e-3, atol=1e-3
    )


@pytest.mark.promise("published-weights")
def test_a_last_layer_of_other_classes_keeps_its_initial_values(
    weights: str, published: ResNet18
) -> None:
    model = ResNet18(in_channels=1, num_classes=10)
    initial = {name: value.clone() for name, value in model.fc.state_dict().items()}
    load_published_weights(model, weights)
    assert all(torch.equal(value, initial[name]) for name, value in model.fc.state_dict().items())
    assert torch.equal(model.layer4[1].conv2.weight, published.layer4[1].conv2.weight)


def test_files_without_batch_counters_load(published: ResNet18, storage_url: str) -> None:
    old = {k: v for k, v in published.state_dict().items() if not k.endswith("batches_tracked")}
    model = ResNet18()
    load_published_weights(model, write(storage_url, old))
    assert torch.equal(model.bn1.running_mean, published.bn1.running_mean)
    assert model.bn1.num_batches_tracked == 0


@pytest.mark.promise("published-weights")
def test_every_other_difference_is_listed_and_changes_nothing(
    published: ResNet18, tmp_path: Path
) -> None:
    tensors = dict(published.state_dict())
    del tensors["layer1.0.conv1.weight"], tensors["layer4.1.bn2.running_var"]
    tensors["layer5.weight"] = torch.zeros(1)
    tensors["bn1.bias"] = torch.zeros(63)
    model = ResNet18()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    url = write(str(tmp_path), tensors)
    with pytest.raises(DataError) as error:
        load_published_weights(model, url)
    assert str(error.value) == (
        f"{url} does not hold ResNet-18's weights: missing layer1.0.conv1.weight; "
        "missing layer4.1.bn2.running_var; unexpected layer5.weight; "
        "bn1.bias of shape (63,) instead of (64,)"
    )
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_first_layer_that_no_rule_adapts_is_an_error(weights: str) -> None:
    with pytest.raises(DataError, match=r"conv1.weight of shape \(64, 3, 7, 7\) instead of"):
        load_published_weights(ResNet18(in_channels=4), weights)


def test_a_missing_or_truncated_file_is_named(weights: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"weights .*/no.safetensors are missing"):
        load_published_weights(ResNet18(), str(tmp_path / "no.safetensors"))
    store = Store(str(tmp_path))
    store.write("resnet18.safetensors", store.read("resnet18.safetensors")[:-1])
    with pytest.raises(DataError, match=r"resnet18.safetensors are not a whole safetensors file"):
        load_published_weights(ResNet18(), weights)


def test_the_convolutions_start_as_he_proposed() -> None:
    torch.manual_seed(0)
    for module in ResNet18(in_channels=1, num_classes=10).modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * module.kernel_size[0] * module.kernel_size[1]
            assert float(module.weight.detach().std()) == pytest.approx(
                (2 / fan_out) ** 0.5, rel=0.05
            )


@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize("stride", [1, 2])
def test_leaving_out_taps_on_the_padding_changes_nothing(size: int, stride: int) -> None:
    trimmed = TrimmedConv2d(3, 5, 3, stride, padding=1, bias=False).double()
    images = torch.randn(2, 3, size, size, dtype=torch.float64, requires_grad=True)
    found = trimmed(images)
    expected = nn.functional.conv2d(images, trimmed.weight, None, stride, 1)
    torch.testing.assert_close(found, expected)
    inputs = (images, trimmed.weight)
    along = torch.randn_like(expected)
    for mine, plain in zip(
        torch.autograd.grad(found, inputs, along),
        torch.autograd.grad(expected, inputs, along),
        strict=True,
    ):
        torch.testing.assert_close(mine, plain)
