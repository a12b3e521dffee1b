"""The peers of the training benchmark: one program, several ways to train ResNet-18 on MNIST.

    stock        Ray Train's introductory tutorial, as it is written; (a)
    stock-tuned  the same with evertrain's optimizer and schedule; (a')
    stock-model  (a') with evertrain's model, too, which computes the same in less time; (a'')
    torchrun     plain DDP, the tutorial's data, evertrain's optimizer and schedule; (b)
    one-batch    the same steps on one batch that is in memory already: the compute bound; (d)

Each writes `{"samples_per_s": …, "accuracy": …}` to the file it is given. The rate is that of the
loop: from the end of step WARM_UP to the end of the last step.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from train_core.workloads.mnist import MnistResNet18, MnistSettings
from train_core.workloads.resnet import ResNet18, TrimmedConv2d

STOCK = ("stock", "stock-tuned", "stock-model")
GLOBAL_BATCH = 128
WARM_UP = 5


class PerSampleMnist(Dataset[tuple[Tensor, int]]):
    """MNIST as torchvision reads it: a PIL image a sample, ToTensor, Normalize((0.5,), (0.5,))."""

    def __init__(self, folder: str, prefix: str = "train") -> None:
        images = gzip.decompress(Path(folder, f"{prefix}-images-idx3-ubyte.gz").read_bytes())
        labels = gzip.decompress(Path(folder, f"{prefix}-labels-idx1-ubyte.gz").read_bytes())
        self.data = torch.from_numpy(np.frombuffer(images, np.uint8, offset=16).copy())
        self.data = self.data.view(-1, 28, 28)
        self.targets = torch.from_numpy(np.frombuffer(labels, np.uint8, offset=8).astype(np.int64))

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = Image.fromarray(self.data[index].numpy(), mode="L")
        array = torch.from_numpy(np.array(image, np.uint8, copy=True)).view(28, 28, 1)
        tensor = array.permute(2, 0, 1).contiguous().to(torch.float32).div(255)
        mean, std = torch.as_tensor([0.5]).view(-1, 1, 1), torch.as_tensor([0.5]).view(-1, 1, 1)
        return tensor.clone().sub_(mean).div_(std), int(self.targets[index])


class Loop:
    """The tutorial's loop, timed."""

    def __init__(self, task: dict[str, Any], workload: MnistResNet18, *, tuned: bool) -> None:
        self.task = task
        self.workload = workload
        self.tuned = tuned
        self.begin = self.seconds = 0.0
        self.steps = 0

    def run(self, model: nn.Module, batches: Iterable[Any], steps_per_epoch: int) -> None:
        """One epoch, or the steps that the task is limited to."""
        criterion = nn.CrossEntropyLoss()
        schedule = None
        if self.tuned:
            bare = model.module if isinstance(model, DistributedDataParallel) else model
            optimizer = self.workload.optimizer(bare)
            schedule = self.workload.schedule(optimizer, steps_per_epoch)
        else:
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
        for images, labels in batches:
            outputs = model(images)
            loss = criterion(outputs, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if schedule:
                schedule.step()
            self.steps += 1
            if self.steps == WARM_UP:
                self.begin = time.perf_counter()
            if self.steps == self.task["steps"]:
                break
        self.seconds = time.perf_counter() - self.begin

    def write(self, model: nn.Module) -> None:
        """Store the rate, and the accuracy on the test split if it was asked for."""
        result = {"samples_per_s": (self.steps - WARM_UP) * GLOBAL_BATCH / self.seconds}
        if self.task["accuracy"]:
            result["accuracy"] = accuracy(model, self.task["data"])
        Path(self.task["out"]).write_text(json.dumps(result))


def tutorial_model() -> nn.Module:
    """ResNet-18 as torchvision computes it: every convolution in full."""
    model = ResNet18(in_channels=1, num_classes=10)
    for module in model.modules():
        if isinstance(module, TrimmedConv2d):
            module.forward = MethodType(nn.Conv2d.forward, module)  # type: ignore[method-assign]  # undone
    return model


def accuracy(model: nn.Module, data: str) -> float:
    """Of the model on the test split."""
    model.eval()
    test = PerSampleMnist(data, "t10k")
    with torch.inference_mode():
        right = [
            (model(images).argmax(1) == labels).sum().item()
            for images, labels in DataLoader(test, 500)
        ]
    return sum(right) / len(test)


def stock(task: dict[str, Any]) -> None:
    """The tutorial's training function under `TorchTrainer.fit()`."""
    import ray.train.torch
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    def train_loop_ray_train(config: dict[str, Any]) -> None:
        workload = MnistResNet18(MnistSettings(data=config["data"]))
        ours = config["peer"] == "stock-model"
        model = ray.train.torch.prepare_model(workload.model() if ours else tutorial_model())
        world_size = ray.train.get_context().get_world_size()
        loader = DataLoader(
            PerSampleMnist(config["data"]),
            batch_size=GLOBAL_BATCH // world_size,
            shuffle=True,
            drop_last=True,
        )
        loader = ray.train.torch.prepare_data_loader(loader)
        loader.sampler.set_epoch(0)
        loop = Loop(config, workload, tuned=config["tuned"])
        loop.run(model, loader, len(loader))
        is_first = ray.train.get_context().get_world_rank() == 0
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if is_first:
                torch.save(model.module.state_dict(), os.path.join(folder, "model.pt"))
                checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report({"epoch": 0}, checkpoint=checkpoint)
        if is_first:
            loop.write(model.module)

    TorchTrainer(
        train_loop_ray_train,
        train_loop_config=task,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=task["scratch"]),
    ).fit()


def torchrun(task: dict[str, Any]) -> None:
    """One rank of plain DDP."""
    dist.init_process_group("gloo")
    workload = MnistResNet18(MnistSettings(data=task["data"]))
    data = PerSampleMnist(task["data"])
    batch_size = GLOBAL_BATCH // dist.get_world_size()
    sampler: DistributedSampler[Any] = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, batch_size=batch_size, sampler=sampler, drop_last=True)
    batches: Iterable[Any] = loader
    model = tutorial_model()
    if task["peer"] == "one-batch":
        batches = [next(iter(loader))] * len(loader)
        model = workload.model()
    model = DistributedDataParallel(model)
    loop = Loop(task, workload, tuned=True)
    loop.run(model, batches, len(loader))
    if dist.get_rank() == 0:
        loop.write(model.module)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    if told["peer"] in STOCK:
        stock(told | {"tuned": told["peer"] != "stock"})
    else:
        torchrun(told)
