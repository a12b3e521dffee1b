"""The processes of a Ray that a driver has started."""

from __future__ import annotations

from contextlib import suppress

import psutil

from train_core.client.driver_handle import Driver


def part_of_ray(driver: Driver, title: str) -> psutil.Process:
    """A process of the driver's Ray."""
    for process in psutil.Process(driver.carrier.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.name() == title:
                return process
    raise AssertionError(f"no {title} runs")


def workers_of(driver: psutil.Process) -> list[psutil.Process]:
    """The workers that train or score in the Ray of a process."""
    found = []
    for process in driver.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if any("TrainWorker" in argument for argument in process.cmdline()[:1]):
                found.append(process)
    return found
