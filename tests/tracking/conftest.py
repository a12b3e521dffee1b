"""A real MLflow: a SQLite database, and a server in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import psutil
import pytest
from matplotlib import rc_context
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

from benchmarks.services import answers_at, free_port, wait_until_up
from evertrain_flows.databases import create_tracking_database
from tests import commands
from tests.flows.mlflow_side import close_databases
from tests.plugins.leaks import Belongings
from tests.tracking.run_builder import RunBuilder
from tests.web import served
from train_core.storage.run_folder import RunFolder

TESTS = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def no_leaks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As everywhere, once MLflow has closed the databases that it keeps open for the process."""
    # Its bar has a thread that stays.
    monkeypatch.setenv("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    before, path = Belongings.now(), sys.path[:]
    yield
    # A model that is loaded adds its copies of our modules, which later tests would import.
    sys.path[:] = path
    close_databases()
    left = before.added(within_s=5)
    assert not left, f"left behind: {', '.join(left)}"


@pytest.fixture
def as_users_modules() -> Iterator[None]:
    """`digits_function` and `shops` can be imported by these names, as modules of a user's folder.

    A model of `tests.scoring.shops` would have the whole package `tests`, a thousand files.
    """
    # `no_leaks` puts the path back.
    sys.path[:0] = [str(TESTS / "compat/functions"), str(TESTS / "scoring")]
    yield
    for name in ("digits_function", "shops"):
        sys.modules.pop(name, None)


@pytest.fixture(autouse=True)
def small_pictures() -> Iterator[None]:
    """Pictures of few points and without ticks: a fourth of what these tests compute is drawing."""
    ticks = ("xtick.bottom", "xtick.labelbottom", "ytick.left", "ytick.labelleft")
    with rc_context({"savefig.dpi": 20, **dict.fromkeys(ticks, False)}):
        yield


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow's empty database, with the default experiment: made once, copied for each test."""
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    create_tracking_database(f"sqlite:///{path}")
    # Opening it adds the default experiment; closed, it is one file.
    SqlAlchemyStore(f"sqlite:///{path}", str(path.parent / "unused")).engine.dispose()
    return path


@pytest.fixture
def tracking_uri(empty_database: Path, tmp_path: Path) -> str:
    path = tmp_path / "tracking" / "mlflow.db"
    path.parent.mkdir()
    path.write_bytes(empty_database.read_bytes())
    return f"sqlite:///{path}"


@pytest.fixture
def run(tmp_path: Path) -> RunBuilder:
    return RunBuilder(RunFolder(str(tmp_path / "runs"), "digits-1"))


@pytest.fixture
def server(empty_database: Path, tmp_path: Path) -> Iterator[MlflowServer]:
    """A server that is not started yet, on a port of its own."""
    folder = tmp_path / "server"
    folder.mkdir()
    (folder / "mlflow.db").write_bytes(empty_database.read_bytes())
    found = MlflowServer(folder)
    yield found
    found.stop()


@dataclass
class MlflowServer:
    """`mlflow server`, on SQLite if not told otherwise, serving artifacts too."""

    folder: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None
    database: str = ""
    """Empty: a SQLite file in the folder."""
    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        database, log = self.database or f"sqlite:///{self.folder}/mlflow.db", self.folder / "log"
        command = [
            *(sys.executable, "-m", "mlflow", "server", "--workers", "1"),
            *("--host", "127.0.0.1", "--port", str(self.port), "--backend-store-uri", database),
            *("--artifacts-destination", str(self.folder / "artifacts"), *self.options),
        ]
        quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        environment = os.environ | quiet | self.environment
        self.process = commands.begin(command, log, cwd=self.folder, env=environment)
        wait_until_up(lambda: answers_at(f"{self.uri}/health"), log, self.process)

    def stop(self) -> None:
        if self.process is None:
            return
        processes = [*psutil.Process(self.process.pid).children(recursive=True), self.process]
        for process in processes:
            process.kill()
        self.process.wait(10)
        self.process = None


@pytest.fixture
def answering() -> Iterator[str]:
    """A web server, no MLflow: `<url>/<status>/...` is answered with that status and a page."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(int(self.path.split("/")[1]))
            self.end_headers()
            self.wfile.write(b"<html>a page</html>")

        def log_request(self, *args: object) -> None:
            pass

    with served(Handler) as url:
        yield url
