"""A user's project: a workload that can stand still after a step, and a function for Ray Train."""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from slices import BRIGHTNESS
from torch import nn

from train_core.workloads.digits import Digits

HOLD_AFTER = "NIGHTLY_HOLD_AFTER"
"""The step after which a training stands still; unset: none."""


def hold(step: int) -> None:
    """Stand still until this process is killed, if the environment says so."""
    while step == int(os.environ.get(HOLD_AFTER, "-1")):
        time.sleep(0.02)


class Nightly(Digits):
    """The digits."""

    white = BRIGHTNESS

    def after_step(self, model: nn.Module, step: int) -> None:
        """Stand still after the step that the environment names."""
        hold(step)


def count(config: dict[str, Any]) -> None:
    """Count to the `target` of the config, with a report and a folder each time."""
    from ray import train

    reached, checkpoint = 0, train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            reached = json.loads(Path(folder, "counted.json").read_text())["reached"]
    while reached < config["target"]:
        reached += 1
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "counted.json").write_text(json.dumps({"reached": reached}))
            reported = train.Checkpoint.from_directory(folder)
            train.report({"loss": 1 / reached, "epoch": reached}, checkpoint=reported)
        hold(reached)
