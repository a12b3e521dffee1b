"""Secrets, planted wherever one may come from, are found nowhere; and the servers want logins."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prefect.flows import Flow
from sklearn.datasets import load_digits

from benchmarks.services import BIN, free_port, prefect_server, server
from evertrain_flows.cli.app import main
from evertrain_flows.databases import create_tracking_database
from evertrain_flows.parameters import RetrainParameters
from evertrain_flows.retrain import retrain
from tests import commands
from tests.flows import planted
from tests.flows.conftest import isolated
from tests.hostile.whole_run import BEST, PREDICTIONS, reseal, whole_run
from tests.web import QuietFiles, served
from train_core.storage.records.names import REPORT_JSON, RUN_JSON
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import quarantine

ADMIN, MLFLOW, PREFECT = "admin", "mlfl0w-passw0rd", "pr3fect-passw0rd"
INPUT, SETTING, VARIABLE, RECORDED = "1nput-passw0rd", "s3tting-passw0rd", "v4riable", "r3corded"
STORAGE, KEY = "st0rage-passw0rd", "s3cret-key"
SECRETS = (MLFLOW, PREFECT, INPUT, SETTING, VARIABLE, RECORDED, STORAGE, KEY)


class Guarded(QuietFiles):
    """Files for those who have the password, also parts of them."""

    def do_GET(self) -> None:  # noqa: N802 (named by the library)
        login = base64.b64encode(f"me:{INPUT}".encode()).decode()
        if self.headers.get("Authorization") != f"Basic {login}":
            self.send_error(401)
            return
        file = Path(self.translate_path(self.path))
        if "Range" not in self.headers or not file.is_file():
            super().do_GET()
            return
        content = file.read_bytes()
        first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
        part = content[int(first or 0) : int(last) + 1 if last else None]
        self.send_response(206)
        self.send_header("Content-Length", str(len(part)))
        end = int(first or 0) + len(part) - 1
        self.send_header("Content-Range", f"bytes {first or 0}-{end}/{len(content)}")
        self.end_headers()
        self.wfile.write(part)


@contextmanager
def mlflow_with_logins(folder: Path) -> Iterator[str]:
    """The address, with its login, of an MLflow server that asks for one."""
    port, database = free_port(), f"sqlite:///{folder}/mlflow-server.db"
    create_tracking_database(database)
    config = folder / "basic_auth.ini"
    config.write_text(
        "[mlflow]\ndefault_permission = READ\nadmin_username = admin\n"
        f"database_uri = sqlite:///{folder}/logins.db\n"
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
    )
    command = [
        *(str(BIN / "mlflow"), "server", "--app-name", "basic-auth", "--port", str(port)),
        *("--workers", "1", "--backend-store-uri", database),
        *("--artifacts-destination", str(folder / "mlflow-artifacts")),
    ]
    secrets = {"MLFLOW_AUTH_ADMIN_PASSWORD": MLFLOW, "MLFLOW_FLASK_SERVER_SECRET_KEY": "any"}
    settings = {
        "MLFLOW_AUTH_CONFIG_PATH": str(config),
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    url = f"http://127.0.0.1:{port}"
    with server(command, f"{url}/health", folder / "mlflow.log", **settings, **secrets):
        yield url.replace("://", f"://{ADMIN}:{MLFLOW}@")


def found_in(text: bytes) -> set[str]:
    """The secrets that are there, also as a request carries them."""
    logins = {secret: base64.b64encode(f"{ADMIN}:{secret}".encode()) for secret in SECRETS}
    return {one for one in SECRETS if one.encode() in text or logins[one] in text}


@pytest.mark.promise("secrets", "servers-with-logins")
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(find_spec("flask_wtf") is None, reason="needs Flask-WTF (`mlflow[auth]`)")
def test_planted_secrets_are_found_nowhere(tmp_path: Path) -> None:
    home, data, prefect = tmp_path / "home", tmp_path / "data", tmp_path / "prefect"
    for folder in (home, data / "new", prefect):
        folder.mkdir(parents=True)
    rows = pa.table({"image": load_digits().images[:30].tolist()})
    pq.write_table(rows, data / "new/rows.parquet")
    # MLflow gets the package of a workload's module: that of this file has the secrets.
    shutil.copy(planted.__file__, home / "planted.py")
    shown: list[str] = []
    with (
        mlflow_with_logins(tmp_path) as tracking_uri,
        prefect_server(prefect, PREFECT_SERVER_API_AUTH_STRING=f"{ADMIN}:{PREFECT}") as prefect_api,
        served(partial(Guarded, directory=str(data))) as web,
    ):
        environment = isolated(home) | {
            "MLFLOW_TRACKING_URI": tracking_uri,
            "PREFECT_API_URL": prefect_api,
            "PREFECT_API_AUTH_STRING": f"{ADMIN}:{PREFECT}",
            "AWS_SECRET_ACCESS_KEY": KEY,
        }

        def evertrain(*arguments: str, code: int = 0) -> str:
            done = commands.run([*commands.EVERTRAIN, *arguments], cwd=home, env=environment)
            assert done.returncode == code, done.stdout + done.stderr
            shown.append(done.stdout + done.stderr)
            return shown[-1]

        source = f"https://me:{SETTING}@host/rows"
        guarded = web.replace("://", f"://me:{INPUT}@") + "/new"
        asked = (
            *("retrain", "--workload", "planted:Planted", "--epochs", "1"),
            *("--batch-size", "256", "--gpus-per-worker", "0"),
            *("--runtime-env", json.dumps({"env_vars": {"PLANTED": VARIABLE}})),
        )
        settings = {"source": source}
        good = ("--run", "good", "--settings", json.dumps(settings), "--infer-input", guarded)
        told = evertrain(*asked, *good, "--verbose")
        # What is masked is there, so the search below is for something.
        for masked in ("https://***@host/rows", "http://***@127.0.0.1"):
            assert masked in told
        failing = json.dumps(settings | {"fails": True})
        told = evertrain(*asked, "--run", "bad", "--settings", failing, code=2)
        assert "https://***@host/rows is gone" in told
        nowhere = f"http://me:{INPUT}@127.0.0.1:9/x"
        told = evertrain(*asked, "--run", "refused", "--infer-input", nowhere, code=2)
        assert "http://***@127.0.0.1:9/x" in told
        with_login = ("--tracking-uri", tracking_uri)
        assert "://***@127.0.0.1" in evertrain(*asked, *with_login, code=2)
        wrong = tracking_uri.replace(MLFLOW, f"no-{MLFLOW}")
        environment["MLFLOW_TRACKING_URI"] = wrong
        assert "refuses" in evertrain(*asked, "--run", "refused", code=2)
        environment["MLFLOW_TRACKING_URI"] = tracking_uri

        report = RunFolder(str(home / ".evertrain/runs"), "good").report()
        assert report is not None
        assert report["predictions"]["num_rows"] == 30
        assert report["tracking"]["url"].startswith("http://127.0.0.1:")
        for command in (
            *(("show", "good"), ("show", "good", "--json"), ("runs", "status", "good")),
            *(("runs", "list"), ("verify", "good"), ("prune", "good", "--dry-run")),
            ("mirror", "good"),
        ):
            evertrain(*command)
        evertrain("ls", nowhere, code=2)
        environment["EVERTRAIN_STORAGE"] = f"http://me:{STORAGE}@127.0.0.1:9/x"
        for command in (("runs", "list"), ("show", "good"), ("verify", "good"), asked):
            assert "://***@127.0.0.1:9/x" in evertrain(*command, code=2)
    places = {"terminal": "\n".join(shown).encode()} | {
        str(file): file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()
    }
    # The folders of the run, of MLflow and of Prefect are among them, with their databases.
    for part in ("good/run.json", "logs/good.log", "mlflow-server.db", "prefect.db", "MLmodel"):
        assert any(part in place for place in places), part
    found = {place: found_in(content) for place, content in places.items()}
    assert {place: secrets for place, secrets in found.items() if secrets} == {}


@pytest.mark.promise("secrets")
def test_what_prefect_is_given_of_a_commands_parameters_has_no_secrets() -> None:
    parameters = RetrainParameters(
        infer_input=f"http://me:{INPUT}@host/x",
        settings={"source": f"http://me:{SETTING}@host/x"},
        runtime_env={"env_vars": {"PLANTED": VARIABLE}, "pip": ["a"]},
    )
    flow: Flow[Any, Any] = retrain
    stored = flow.serialize_parameters({"parameters": parameters})
    assert found_in(json.dumps(stored).encode()) == set()
    assert stored["parameters"]["infer_input"] == "http://***@host/x"
    assert stored["parameters"]["runtime_env"] == {"env_vars": {"PLANTED": "***"}, "pip": ["a"]}
    # The process that runs the flow has them.
    assert parameters.train_config().runtime_env["env_vars"] == {"PLANTED": VARIABLE}
    assert INPUT in parameters.request().model_dump_json()


@pytest.mark.promise("secrets")
def test_a_record_with_a_password_is_shown_without_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A record of an earlier version, or one that somebody wrote."""
    folder = with_passwords(str(tmp_path), "run")
    for form in ((), ("--json",)):
        assert main(["show", "run", "--storage", str(tmp_path), *form]) == 0
        text = capsys.readouterr().out
        assert RECORDED not in text
        assert "://***@run/x" in text
        assert "?password=***" in text
    quarantine(folder, folder.find(BEST).name, f"http://me:{RECORDED}@quarantined/x is away")
    commands = {
        ("ls", folder.url, "--json"): (0, True),
        ("prune", "run", "--dry-run", "--storage", str(tmp_path), "--json"): (0, True),
        ("runs", "list", "--storage", str(tmp_path), "--json"): (0, False),
        ("runs", "status", "run", "--storage", str(tmp_path), "--json"): (0, False),
        # It lifts the quarantine, as the files are good.
        ("verify", "run", "--storage", str(tmp_path), "--json"): (0, True),
    }
    for command, (code, shows_reason) in commands.items():
        assert exit_code(*command) == code, command
        text = "".join(capsys.readouterr())
        assert RECORDED not in text
        assert ("://***@quarantined/x" in text) == shows_reason, command


@pytest.mark.promise("secrets")
@pytest.mark.slow
def test_a_record_with_a_password_is_compared_and_mirrored_without_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage, mlflow = str(tmp_path / "runs"), tmp_path / "mlflow"
    mlflow.mkdir()
    for run in ("run", "other"):
        with_passwords(storage, run)
    assert exit_code("diff", "run", "other", "--storage", storage) == 1
    text = "".join(capsys.readouterr())
    assert "://***@run/x" in text
    assert RECORDED not in text
    uri = f"sqlite:///{mlflow}/mlflow.db"
    assert exit_code("mirror", "run", "--storage", storage, "--tracking-uri", uri) == 0
    assert RECORDED not in "".join(capsys.readouterr())
    stored = {file.name: file.read_bytes() for file in mlflow.rglob("*") if file.is_file()}
    for file, host in (("mlflow.db", b"run"), ("predictions.json", b"scored")):
        assert b"://***@%s/x" % host in stored[file]
    assert [name for name, content in stored.items() if RECORDED.encode() in content] == []


def exit_code(*command: str) -> int:
    try:
        return int(main(list(command)))
    except SystemExit as ended:
        return int(ended.code or 0)


def with_passwords(storage: str, run: str) -> RunFolder:
    """A run whose record and predictions have passwords."""
    folder = whole_run(storage, run)
    for key in (REPORT_JSON, "asked/0001.json"):
        folder.store.delete(key)
    record, url = folder.record(), f"http://me:{RECORDED}@{run}/x"
    config = record.config.model_copy(update={"settings": {"source": url, url: 1}})
    pipeline = {"tracking_uri": f"postgresql://host/x?password={RECORDED}"}
    record = record.model_copy(update={"config": config, "pipeline": pipeline})
    folder.store.write(RUN_JSON, record.model_dump_json().encode())
    scored = {"source": f"http://me:{RECORDED}@scored/x", "digest": "0" * 64}
    reseal(folder, f"{PREDICTIONS}/_manifest.json", lambda content: content | {"input": scored})
    return folder
