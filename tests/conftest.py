"""Fixtures of all tests: storage on a disk and on a real S3 server, and a look for leaks."""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from pathlib import Path
from tempfile import TemporaryDirectory

import hypothesis
import pytest

from benchmarks.services import ray_cluster
from tests.plugins.leaks import Belongings
from train_core.policy.findings import EVERYTHING
from train_core.requests import ACCEPT

pytest_plugins = [
    f"tests.plugins.{name}" for name in ("order", "process_ray", "reporting", "shared")
]

SCRIPT = Path(__file__).parent / "object-store.sh"
BUCKET = "evertrain-tests"
# Workloads of tests wait in their hooks, and a rehearsal takes a second of each of many runs:
# tests/driver/preparing/test_rehearsing.py has it.
os.environ[ACCEPT] = EVERYTHING
# The tests share two cores: how long an example takes says nothing.
hypothesis.settings.register_profile("shared", deadline=None)
hypothesis.settings.load_profile("shared")
STORAGES = ["local", pytest.param("s3", marks=pytest.mark.s3)]


def pytest_configure() -> None:
    """Hear SIGINT: jobs in the background ignore it, and so would the programs of the tests."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect the tests without looking for garbage, of which there is little: it takes seconds.

    What is imported stays: the look for leaks, which collects garbage, need not look at it. Later
    Python looks for garbage less often: beside MLflow's tests that takes a tenth of the time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 20, 50)
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def server_of_ranks() -> None:
    """The server that ranks are forked from runs before any test: none is said to have left it.

    It imports torch, and is started if a file of tests has imported what starts ranks. The process
    that `multiprocessing` keeps for what its processes share is always started, and imports little.
    """
    resource_tracker.ensure_running()
    if processes := sys.modules.get("tests.ranks.processes"):
        processes.start_server()


@pytest.fixture(scope="module")
def ray_address() -> Iterator[str]:
    """Of a running cluster: one node, which says that it has 2 CPUs and 1 GPU.

    It starts workers while a test runs, so its tests take no look for leaks of their own: what is
    left is looked at when the cluster ended.
    """
    before = Belongings.now()
    # Ray's sockets need a short path.
    with (
        TemporaryDirectory(prefix="ray-") as folder,
        ray_cluster(Path(folder), "--num-cpus=2", "--num-gpus=1") as found,
    ):
        yield found
    assert not before.added(within_s=10)


@pytest.fixture(scope="session")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a bucket on a real S3 server, whose address and keys are in the environment."""
    if not has_object_store():
        pytest.skip("no S3 server here: apt-get install ceph-mon ceph-osd radosgw curl")
    with object_store_in(tmp_path_factory.mktemp("object-store")) as url:
        yield url


def has_object_store() -> bool:
    """Whether this machine can run the S3 server."""
    return shutil.which("radosgw", path=f"{os.environ['PATH']}:/usr/sbin") is not None


@contextmanager
def object_store_in(folder: Path) -> Iterator[str]:
    """A real S3 server whose files lie in `folder`; as the fixture."""
    # A machine that only trains may lack it.
    import s3fs

    try:
        subprocess.run([SCRIPT, "start", folder], check=True)
        shown = subprocess.check_output([SCRIPT, "env", folder], text=True)
        os.environ.update(re.findall(r"^export (\w+)=(.*)$", shown, re.MULTILINE))
        s3fs.S3FileSystem().mkdir(BUCKET)
        yield f"s3://{BUCKET}"
    finally:
        subprocess.run([SCRIPT, "destroy", folder], check=True)


@pytest.fixture(params=STORAGES)
def storage_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty place of the test's own: a folder on the disk, then a prefix on S3."""
    if request.param == "local":
        return str(tmp_path / "storage")
    return f"{request.getfixturevalue('object_store')}/{uuid.uuid4().hex}"


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test leaves a thread, a process or an open file behind, unless its mark says `leaves`.

    A Ray of this process (tests/plugins/process_ray.py) starts some while a test runs; they end
    with it, and nobody looks for them until then.
    """
    ray = sys.modules.get("ray")
    has_ray = ray is not None and ray.is_initialized()
    if has_ray or request.node.get_closest_marker("leaves"):
        yield
        return
    before = Belongings.now()
    yield
    left = before.added(within_s=5)
    assert not left, f"left behind: {', '.join(left)}"


@pytest.fixture
def own_threads() -> Iterator[None]:
    """The number of torch's threads, which scoring sets for its process, is put back."""
    import torch

    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def real_data() -> Path:
    folder = os.environ.get("EVERTRAIN_DATA")
    if not folder:
        pytest.skip("EVERTRAIN_DATA is not set: the folder that has mnist and fashion-mnist")
    return Path(folder)
