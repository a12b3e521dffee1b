"""In which order the files of tests run, side by side in the processes of pytest-xdist."""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler.loadscope import LoadScopeScheduling

PIPELINES = "pipelines"
SHARES_A_PIPELINE = (
    *("bad_input", "batch_inference", "mirror_command", "pipeline", "stopped", "struck"),
    "unchanged",
)
"""`flows/test_….py`: they compare with one pipeline that nobody disturbs, which runs once."""
LONGEST = (
    PIPELINES,
    *("engine/test_jobs", "engine/driver/test_launchers", "engine/test_exact"),
    *("engine/test_cluster", "engine/test_crash_save", "mlflow/test_server"),
    *("engine/test_driver", "engine/test_entries", "engine/test_hostile", "storage/test_lease"),
)
"""As `--phases` tells; a list that is old costs seconds, and nothing else."""
MEASURES_TIME = (
    *("engine/test_hang", "flows/test_server_connection", "mlflow/test_catch_up"),
    "storage/test_standstill",
)
"""They say how long something takes: no pipeline shall load both cores beside them."""


def group_of(nodeid: str) -> str:
    """The group of a test, by its name below `tests/`: its file, but for the pipelines."""
    file = nodeid.removeprefix("tests/").partition("::")[0].removesuffix(".py")
    return PIPELINES if file.removeprefix("flows/test_") in SHARES_A_PIPELINE else file


def place_of(nodeid: str) -> int:
    """The lower, the earlier; those of equal place stay as they were collected."""
    group = group_of(nodeid)
    if group in LONGEST:
        return LONGEST.index(group)
    return len(LONGEST) + (group in MEASURES_TIME)


class SlowestFirst(LoadScopeScheduling):
    """A process that is free takes the next group."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The same in all processes: they have to agree."""
    items.sort(key=lambda item: place_of(item.nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SlowestFirst:
    """Keep this order, where pytest-xdist would begin with the group that has most tests."""
    config.option.loadscopereorder = False
    return SlowestFirst(config, log)
