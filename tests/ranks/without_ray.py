"""A driver's stages in this process, where nothing needs Ray."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from train_core.driver.ray_session import LocalRaySession
from train_core.driver.run_stages import RunStages
from train_core.requests import DriverRequest


def stages_without_ray(request: DriverRequest) -> RunStages:
    """The stages of a request; one that asks for Ray fails."""
    return RunStages(request, LocalRaySession(request.config, _refuse))


def _refuse(_: Callable[[], None]) -> Future[None]:
    raise AssertionError("Ray is started")
