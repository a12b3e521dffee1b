"""The processes below another one, as those of a Ray that a driver has started."""

from __future__ import annotations

from contextlib import suppress

import psutil

from train_core.client.driver_handle import Driver


def below(process: psutil.Process, title: str) -> list[psutil.Process]:
    """What the process has started, and what that has, whose command begins with such a word."""
    found = []
    for one in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if any(title in argument for argument in one.cmdline()[:3]):
                found.append(one)
    return found


def part_of_ray(driver: Driver, title: str) -> psutil.Process:
    """The only process of the driver's Ray that is called so."""
    (found,) = below(psutil.Process(driver.carrier.process.pid), title)
    return found


def workers_of(driver: psutil.Process) -> list[psutil.Process]:
    """The workers that train or score in the Ray of a process."""
    return below(driver, "TrainWorker")
