"""In which order the files of tests run, side by side in the processes of pytest-xdist."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler.loadscope import LoadScopeScheduling
from xdist.workermanage import WorkerController

LOCKS = "EVERTRAIN_TESTS_LOCKS"
"""Names the folder of the locks that all processes of a run of the tests share."""
CLUSTER, DEPLOYMENTS, PIPELINES, RAY = "nodes", "deployments", "pipelines", "ray"
GROUPS = {
    # They make networks and machines of several nodes, two of which would be more than two cores.
    "nodes/": CLUSTER,
    # They share a Prefect server and its worker.
    **{f"flows/deployment/test_{name}": DEPLOYMENTS for name in ("jobs", "machine", "runs")},
    # They compare with one pipeline that nobody disturbs, which runs once.
    "flows/pipelines/": PIPELINES,
    **{f"flows/cli/test_{name}": PIPELINES for name in ("bad_input", "mirror_command")},
    # They share a Ray that the process itself started (`process_ray` in tests/plugins).
    **{f"cluster/test_{name}": RAY for name in ("pool", "slots", "spares")},
    **{f"driver/{name}": RAY for name in ("attempts/test_launchers", "test_gate_stages")},
    "compat/reports/test_validations": RAY,
}
"""By how their names below `tests/` begin; every other file is a group of its own."""
SHARE_NOTHING = "compat/attempts/test_kills"
"""The file in which each test is a group of its own: it would keep one process busy for an hour."""
LOADS_BOTH_CORES = (
    *("compat/attempts/test_kills", CLUSTER, DEPLOYMENTS, PIPELINES, RAY, "chaos/"),
    *("flows/deployment/", "flows/test_gate", "flows/test_secrets", "driver/job/test_attaching"),
    *("rank/test_in_place", "driver/test_driver", "rank/test_exact", "rank/test_entries"),
)
"""Whole pipelines and trainings, by how their groups begin. They run first, in this order."""
MEASURES_TIME = (
    *("driver/job/test_entry", "tracking/test_mlflow_server", "tasks/test_server_connection"),
    *("rank/test_hang", "storage/objects/test_standstill", "storage/coordination/test_lease"),
    "storage/objects/test_retry_policy",
)
"""They say how long something takes: no test of these runs beside one that loads both cores."""
WAITS = (
    *("compat/reports/test_report_faults", "compat/reports/test_reporter"),
    *("rank/data/test_silent_data_workers", "rank/test_stop_by_driver", "rank/test_stop"),
    *("rank/test_outage", *MEASURES_TIME, "flows/cli/test_prefect_server"),
)
"""They wait for most of their time. One process at a time runs these as long as there are others,
which compute beside it.
"""
LONGEST = (
    *("compat/reports/test_reports", "tracking/test_contract", "pytorch/test_table"),
    *("tracking/test_models", "workloads/test_cookbook", "earlier_versions/test_installation"),
    *("hostile/test_hostile_models", "hostile/test_hostile_folders", "rehearsal/test_rehearse"),
    *("rank/checkpoint/test_crash_save", "tracking/delivery/test_mirror", "test_on_report"),
    *("tasks/driver_session/test_session", "test_search_path", "driver/preparing/test_rehearsing"),
    *("rank/checkpoint/test_hostile", "tracking/test_refusals", "storage/objects/test_store"),
    *("scoring/test_row_sums", "driver/preparing/test_unchanged"),
    *("rank/checkpoint/test_states_of_others", "test_quick_imports", "scoring/test_comparison"),
    *("tracking/test_function_models", "tracking/test_kept_models", "flows/cli/test_proxy"),
    *("flows/cli/test_verify_resume", "storage/objects/test_store_faults", "test_entry_points"),
    *("tracking/delivery/test_catch_up", "compat/test_without_ray_train", "cluster/test_gpus"),
)
"""The others begin with these, so that the last ones to run are short. `--phases` tells how long
they take; a list that is old costs seconds, and nothing else.
"""


def group_of(nodeid: str) -> str:
    """The group of a test, by its name below `tests/`."""
    path, _, test = nodeid.removeprefix("tests/").partition("::")
    file = path.removesuffix(".py")
    if file == SHARE_NOTHING and test:
        return f"{file}::{test}"
    return next((group for name, group in GROUPS.items() if file.startswith(name)), file)


def in_order(nodeids: Sequence[str]) -> list[str]:
    """The tests as they are to run, those of a group one after the other."""
    groups: dict[str, list[str]] = {}
    for nodeid in nodeids:
        groups.setdefault(group_of(nodeid), []).append(nodeid)
    loading, waiting = _those_of(LOADS_BOTH_CORES, groups), _those_of(WAITS, groups)
    placed = {*loading, *waiting}
    others = [name for name in _those_of([*LONGEST, ""], groups) if name not in placed]
    return [nodeid for name in [*loading, *waiting, *others] for nodeid in groups[name]]


def next_of(queue: Collection[str], others: Iterable[Mapping[str, Mapping[str, bool]]]) -> str:
    """The group of the queue that a process takes.

    `others` are the groups of each other process, with the tests of each that are done.
    """
    running = [group for work in others for group, tests in work.items() if not all(tests.values())]
    first = next(iter(queue))
    if any(group in WAITS for group in running):
        return next((group for group in queue if group not in WAITS), first)
    return first


def _those_of(kind: Sequence[str], groups: Collection[str]) -> list[str]:
    """The groups whose names begin so, in the order of the kind."""
    found = [name for begin in kind for name in groups if name.startswith(begin)]
    return list(dict.fromkeys(found))


@contextmanager
def cores_for(group: str, locks: Path) -> Iterator[None]:
    """Wait until a test of the group may run, and keep it so: locks that all processes share.

    Those that load both cores run side by side, and those that measure time do; never one kind
    beside the other. A test that waits is not overtaken.
    """
    if group in MEASURES_TIME:
        kinds = ["measuring", "loading"]
    elif group.startswith(LOADS_BOTH_CORES):
        kinds = ["loading", "measuring"]
    else:
        yield
        return
    with ExitStack() as files:
        queue, own, other = (
            files.enter_context((locks / name).open("w")) for name in ("queue", *kinds)
        )
        fcntl.flock(queue, fcntl.LOCK_EX)
        # Nobody of the other kind runs any more, and none can begin before `own` is taken.
        fcntl.flock(other, fcntl.LOCK_EX)
        fcntl.flock(own, fcntl.LOCK_SH)
        fcntl.flock(other, fcntl.LOCK_UN)
        fcntl.flock(queue, fcntl.LOCK_UN)
        yield


def pytest_configure(config: pytest.Config) -> None:
    """Make the locks, which the processes of pytest-xdist find by the environment."""
    if not hasattr(config, "workerinput"):
        os.environ[LOCKS] = tempfile.mkdtemp(prefix="evertrain-tests-")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Delete the locks; the processes of pytest-xdist have ended."""
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(LOCKS))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run the test when its group may; what it waits for that does not count as the test's time."""
    with cores_for(group_of(item.nodeid), Path(os.environ[LOCKS])):
        return (yield)


class SlowestFirst(LoadScopeScheduling):
    """A process takes the next group when two tests of its last one are left."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        others = [work for one, work in self.assigned_work.items() if one is not node]
        self.workqueue.move_to_end(next_of(self.workqueue, others), last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The same in all processes: they have to agree. What `-m` leaves out is left out already."""
    places = {nodeid: place for place, nodeid in enumerate(in_order([one.nodeid for one in items]))}
    items.sort(key=lambda item: places[item.nodeid])


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SlowestFirst:
    """Keep this order, where pytest-xdist would begin with the group that has most tests."""
    config.option.loadscopereorder = False
    return SlowestFirst(config, log)
