"""Digits that stand still after a step that the environment names, until a file appears."""

from __future__ import annotations

import os
import time
from pathlib import Path

from torch import nn

from train_core.workloads.digits import Digits

HOLD_AFTER_STEP = "EVERTRAIN_TEST_HOLD_AFTER_STEP"
HOLD_UNTIL = "EVERTRAIN_TEST_HOLD_UNTIL"
"""The file whose appearance ends it; unset: nothing does."""


class HeldDigits(Digits):
    def after_step(self, model: nn.Module, step: int) -> None:
        if step == int(os.environ.get(HOLD_AFTER_STEP, "-1")):
            while not Path(os.environ.get(HOLD_UNTIL, "/nowhere/at/all")).exists():
                time.sleep(0.02)
