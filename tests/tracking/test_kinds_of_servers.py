"""MLflow has the journal, point for point, after kills and outages, whatever it stores it in.

PostgreSQL is Debian's; its driver and the parts of the server with basic authentication are
installed by `make venv`.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
from mlflow import MlflowClient

from benchmarks.services import free_port, wait_until_up
from tests import commands
from tests.tracking.conftest import MlflowServer
from tests.tracking.delivery.test_mirror import mirror_once, points, stages
from tests.tracking.following import mirrored
from tests.tracking.run_builder import RunBuilder
from train_core.errors import TrackingError
from train_core.policy.end_status import EndStatus
from train_core.storage.records.journal import read_segments
from train_core.tracking.delivery.mirror import Mirror

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PACKAGED = Path("/usr/lib/postgresql")
USER = "evertrain"


def programs() -> Path | None:
    """The folder of the newest PostgreSQL's programs; None if it is not installed."""
    found = sorted(PACKAGED.glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    return found[-1].parent if found else None


@contextmanager
def postgresql() -> Iterator[str]:
    """The address of an empty database, until the block ends."""
    folder_of_programs = programs()
    assert folder_of_programs is not None, "apt-get install postgresql"
    # It refuses to be run by root, and its socket's path must be short.
    owner = {"user": "nobody", "group": "nogroup"} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as name:
        folder, port = Path(name), free_port()
        if owner:
            shutil.chown(folder, **owner)
        data = folder / "data"
        made = [folder_of_programs / "initdb", "-D", data, "-A", "trust", "-U", USER, "--no-sync"]
        subprocess.run(made, check=True, capture_output=True, cwd=folder, **owner)
        serving = [folder_of_programs / "postgres", "-D", data, "-p", str(port), "-k", folder]
        with (
            (folder / "log").open("w") as log,
            subprocess.Popen(
                [*serving, "-c", "fsync=off"], stdout=log, stderr=log, cwd=folder, **owner
            ) as process,
        ):
            try:
                asking = [folder_of_programs / "pg_isready", "-h", "127.0.0.1", "-p", str(port)]
                wait_until_up(lambda: commands.run(asking).returncode == 0, folder / "log", process)
                yield f"postgresql://{USER}@127.0.0.1:{port}/postgres"
            finally:
                # An immediate shutdown: nothing has to be kept.
                process.send_signal(signal.SIGQUIT)
                process.wait(30)


NO_POSTGRESQL = programs() is None or find_spec("psycopg2") is None
NO_BASIC_AUTH = find_spec("flask_wtf") is None
PASSWORD = "correct horse battery staple"


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param(
            "postgresql",
            marks=pytest.mark.skipif(NO_POSTGRESQL, reason="needs PostgreSQL and psycopg2"),
        ),
        pytest.param(
            "basic-auth", marks=pytest.mark.skipif(NO_BASIC_AUTH, reason="needs mlflow[auth]")
        ),
    ]
)
def any_server(
    request: pytest.FixtureRequest,
    server: MlflowServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[MlflowServer]:
    """A server that is not started yet."""
    if request.param == "postgresql":
        with postgresql() as server.database:
            yield server
            server.stop()
        return
    if request.param == "basic-auth":
        with_basic_auth(server, tmp_path)
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "admin")
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", PASSWORD)
    yield server


def with_basic_auth(server: MlflowServer, folder: Path) -> None:
    """Let the server ask for a name and a password."""
    settings = folder / "auth.ini"
    lines = {
        "default_permission": "NO_PERMISSIONS",
        "database_uri": f"sqlite:///{folder}/auth.db",
        "admin_username": "admin",
        "admin_password": PASSWORD,
        "authorization_function": "mlflow.server.auth:authenticate_request_basic_auth",
    }
    text = "\n".join(f"{name} = {value}" for name, value in lines.items())
    settings.write_text(f"[mlflow]\n{text}\n")
    server.options = ("--app-name", "basic-auth")
    server.environment = {
        "MLFLOW_AUTH_CONFIG_PATH": str(settings),
        "MLFLOW_FLASK_SERVER_SECRET_KEY": "a key of the tests",
    }


def journaled(run: RunBuilder) -> Counter[tuple[str, int, int, float | None]]:
    """Every point of the journal, with its time."""
    return Counter(
        (key, found.step, round(found.time * 1000), value)
        for found in read_segments(run.folder.store, run.segments)
        for key, value in (found.metrics | found.rates).items()
    )


def in_mlflow(uri: str) -> Counter[tuple[str, int, int, float | None]]:
    client, run = MlflowClient(uri), stages(uri)["pipeline"]
    return Counter(
        (key, point.step, point.timestamp, None if math.isnan(point.value) else point.value)
        for key in run.data.metrics
        if key.startswith("train/")
        for point in client.get_metric_history(run.info.run_id, key)
    )


@pytest.mark.promise("mlflow-once")
def test_after_kills_and_outages_mlflow_has_the_journal_point_for_point(
    any_server: MlflowServer, run: RunBuilder
) -> None:
    server = any_server
    server.start()
    run.commit(range(1, 300))
    mirror_once(run, server.uri, EndStatus.KILLED)
    for first in (300, 500):
        # The driver is killed while MLflow is away: its mirror does not come to an orderly end.
        run.new_attempt()
        mirror = Mirror(run.folder, server.uri, "tests")
        mirror.start()
        assert mirror.flush()
        server.stop()
        run.commit(range(first, first + 100))
        assert not mirror.flush(timeout_s=1)
        server.start()
        run.commit(range(first + 100, first + 200))
        assert mirror.flush()
        mirror.close(None)
    run.new_attempt()
    # What was sent last was lost, and is sent again.
    found = stages(server.uri)["pipeline"].info.run_id
    MlflowClient(server.uri).set_tag(found, "evertrain.mirrored", "450+1")
    best = run.commit(range(700, 800), finished=True)
    for split in ("validation", "test"):
        run.evaluate(best, split)
    for _ in range(2):
        mirrored(run.folder, server.uri)
        assert in_mlflow(server.uri) == journaled(run)
        for stage in ("pipeline", "evaluate"):
            assert set(points(server.uri, stage).values()) == {1}


@pytest.mark.skipif(NO_BASIC_AUTH, reason="needs mlflow[auth]")
def test_a_wrong_password_is_refused_before_any_compute(
    run: RunBuilder, server: MlflowServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_basic_auth(server, tmp_path)
    server.start()
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "admin")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "wrong horse")
    mirror = Mirror(run.folder, server.uri, "tests")
    with pytest.raises(TrackingError, match="refuses"):
        mirror.check()
    mirror.close(EndStatus.FAILED)
