"""Digits whose settings hold an address with a password, which they log, and may fail with."""

from __future__ import annotations

import logging

from torch import nn

from train_core.workloads.digits import Digits, DigitsSettings

_log = logging.getLogger("train_core.planted")


class PlantedSettings(DigitsSettings):
    source: str = ""
    fails: bool = False


class Planted(Digits):
    Settings = PlantedSettings
    settings: PlantedSettings

    def after_step(self, model: nn.Module, step: int) -> None:
        _log.warning("step %d reads %s", step, self.settings.source)
        if self.settings.fails:
            raise ValueError(f"{self.settings.source} is gone")
