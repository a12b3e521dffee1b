"""Digits that stop for good after a step that the environment names, so that they can be killed."""

from __future__ import annotations

import os
import threading

from torch import nn

from train_core.workloads.digits import Digits

HOLD_AFTER_STEP = "EVERTRAIN_TEST_HOLD_AFTER_STEP"


class HeldDigits(Digits):
    def after_step(self, model: nn.Module, step: int) -> None:
        if step == int(os.environ.get(HOLD_AFTER_STEP, "-1")):
            threading.Event().wait()
