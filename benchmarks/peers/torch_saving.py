"""torch's own ways to save a checkpoint, as its tutorials write them.

`torch.save` of a general checkpoint ("Saving and loading a general checkpoint"), and
`torch.distributed.checkpoint.async_save` ("Asynchronous saving with distributed checkpoint"), as
the tutorial begins, and as it ends, with a writer that keeps its pinned memory.
"""

from __future__ import annotations

import os
import shutil
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful

TORCH_SAVE, DCP, DCP_PINNED = "torch.save", "DCP async_save", "DCP async_save, pinned"


class TorchSave:
    """`torch.save` of the model's and the optimizer's state to one file."""

    name = TORCH_SAVE

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
        self.model, self.optimizer = model, optimizer
        folder.mkdir()
        self.path = folder / "model.pt"

    def save(self, step: int) -> None:
        """Write the file anew."""
        torch.save(
            {
                "step": step,
                "model_state_dict": self.model.state_dict(),
                "optimizer_state_dict": self.optimizer.state_dict(),
            },
            self.path,
        )

    def wait(self) -> None:
        """Nothing is left to do."""

    def close(self) -> None:
        """Delete the file."""
        self.path.unlink(missing_ok=True)


class AppState(Stateful):
    """The model and the optimizer, in the form that DCP asks for."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        """Both states, the optimizer's by the names of the parameters."""
        model_state, optimizer_state = get_state_dict(self.model, self.optimizer)
        return {"model": model_state, "optim": optimizer_state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore both."""
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state_dict["model"],
            optim_state_dict=state_dict["optim"],
        )


class DcpAsync:
    """`async_save`: the loop waits for a copy in main memory, and a thread writes it.

    `pinned`: with one writer for all checkpoints, which keeps its copy in pinned memory.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        folder: Path,
        *,
        pinned: bool = False,
    ) -> None:
        self.name = DCP_PINNED if pinned else DCP
        self.model, self.optimizer = model, optimizer
        folder.mkdir()
        self.folder = folder
        self.writer = dcp.FileSystemWriter(folder, cache_staged_state_dict=True) if pinned else None
        self.future: Future[Any] | None = None
        self.written: list[Path] = []

    def save(self, step: int) -> None:
        """Copy the state and begin to write it; wait for the checkpoint before, if any."""
        if self.future is not None:
            self.future.result()
        state = {"app": AppState(self.model, self.optimizer)}
        target = self.folder / f"step-{step}"
        if self.writer is None:
            self.future = dcp.async_save(state, checkpoint_id=target)
        else:
            self.future = dcp.async_save(state, storage_writer=self.writer, checkpoint_id=target)
        self.written.append(target)

    def wait(self) -> None:
        """Wait until the checkpoint is written; only it is kept."""
        if self.future is not None:
            self.future.result()
            self.future = None
        for old in self.written[:-1]:
            shutil.rmtree(old)
        del self.written[:-1]

    def close(self) -> None:
        """Delete everything."""
        self.wait()
        shutil.rmtree(self.folder)


def join_alone(device: torch.device, interface: str) -> None:
    """Make this process a process group of one, with the back ends that the tutorial names."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
