from __future__ import annotations

import json
import signal
import socket
import subprocess
import tomllib
import urllib.request
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.services import free_port
from evertrain_flows.cli.app import Evertrain, main
from evertrain_flows.cli.commands.retrain import RetrainCommand
from evertrain_flows.cli.commands.workloads import WorkloadsCommand
from evertrain_flows.cli.configuration import configuration_of
from evertrain_flows.cli.mlflow_page import page_of_runs
from evertrain_flows.parameters import RetrainParameters
from evertrain_tasks.report.numbers import number
from tests import commands
from tests.flows.conftest import isolated
from tests.web import served


def parse(*arguments: str) -> RetrainCommand:
    listed = ["retrain", *arguments]
    parsed = Evertrain(_cli_parse_args=listed, **configuration_of(listed))  # type: ignore[arg-type]
    assert parsed.retrain is not None
    return parsed.retrain


@pytest.mark.promise("parameters")
def test_help_lists_every_parameter_with_its_description(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["retrain", "--help"])
    assert ended.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    for name, field in RetrainParameters.model_fields.items():
        assert f"--{name.replace('_', '-')}" in shown
        assert field.description is not None
        assert field.description.split(".")[0].split(";")[0][:30] in shown


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert capsys.readouterr().out == f"evertrain {project['version']}\n"


@pytest.mark.promise("parameters")
def test_a_file_gives_parameters_and_flags_override_them(tmp_path: Path) -> None:
    file = tmp_path / "nightly.yaml"
    file.write_text("epochs: 5\nsettings: {width: 8, dropout: 0.5}\ncheckpoint_every_steps: 10\n")
    parsed = parse(
        "--config", str(file), "--epochs", "7", "--settings", '{"width": 4}',
        "--checkpoint-every-epochs", "0", "--strict",
    )  # fmt: skip
    assert parsed.epochs == 7
    assert parsed.settings == {"width": 4, "dropout": 0.5}
    assert (parsed.checkpoint_every_steps, parsed.checkpoint_every_epochs) == (10, 0)
    assert parsed.strict


@pytest.mark.promise("parameters")
def test_a_json_file_is_as_good(tmp_path: Path) -> None:
    file = tmp_path / "nightly.json"
    file.write_text(json.dumps({"epochs": 5, "precision": "bf16"}))
    parsed = parse(f"--config={file}")
    assert (parsed.epochs, parsed.precision) == (5, "bf16")


@pytest.mark.promise("one-line-refusal")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["retrain", "--epochs", "-1"], "epochs: Input should be greater than or equal to 1"),
        (["retrain", "--epochs", "many"], "epochs: Input should be a valid integer"),
        (["retrain", "--settings", "{"], "settings"),
        (["retrain", "--epocs", "1"], "unrecognized arguments: --epocs"),
        (["retrain", "--batch-size", "1", "--num-workers", "2"], "raise batch_size"),
        (["retrain", "--workload", "nonsense"], "workload: name it as package.module:Name"),
        (["retrain", "--run", "../up"], "run name '../up' is not usable"),
        (["retrain", "--config", "/nowhere.yaml"], "'/nowhere.yaml' cannot be read"),
        (["ls", "/nowhere"], "there is nothing at /nowhere: give a storage's or a run's address"),
        (["runs", "status", "none", "--storage", "/nowhere"], "there is no run 'none'"),
        (["show", "none", "--storage", "/nowhere"], "there is no run 'none'"),
        (["dance"], "invalid choice: 'dance'"),
        (["runs", "extend", "a"], "--epochs is required"),
        (["runs", "extend", "a", "--epochs", "b"], "epochs: String should match pattern"),
    ],
)
def test_bad_input_is_one_line_that_names_it(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("evertrain: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_any_command_with_130(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(number)
    monkeypatch.setattr(WorkloadsCommand, "cli_cmd", lambda _: signal.raise_signal(number))
    assert main(["workloads"]) == 130
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("flag", ["--mlflow-port", "--prefect-port"])
def test_pages_on_a_port_that_is_taken_are_refused(
    flag: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    with ExitStack() as stack:
        taken, free = (stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in "ab")
        port, other = taken.getsockname()[1], free.getsockname()[1]
        free.close()
        flags = {"--mlflow-port": other, "--prefect-port": other} | {flag: port}
        asked = [str(word) for item in flags.items() for word in item]
        assert main(["ui", "--tracking-uri", "sqlite:///nowhere.db", *asked]) == 2
    assert f"port {port} is taken" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("mysql+nodriver://me:s3cret@host/x", "dialects:mysql.nodriver"),
        ("mssql+pymssql://me:s3cret@host/x", "No module named 'pymssql'"),
        ("postgresql://me:s3cret@host:port/x", "'port'"),
        ("mssql+pymssql://me:s3cret]x@host/x", "No module named 'pymssql'"),
    ],
)
def test_a_database_without_its_driver_is_refused_in_one_line(
    uri: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ui", "--tracking-uri", uri]) == 2
    told = capsys.readouterr().err
    assert told.startswith("evertrain: MLflow cannot open the database ")
    assert why in told
    assert "Install its driver" in told
    assert "s3cret" not in told
    assert told.count("\n") == 1


def test_the_page_of_mlflow_is_that_of_the_experiment() -> None:
    asked, answers = [], [b'{"experiment": {"experiment_id": "7", "name": "evertrain"}}']

    class Mlflow(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200 if answers else 404)
            self.end_headers()
            self.wfile.write(answers.pop() if answers else b'{"error_code": "NOT_FOUND"}')

        def log_message(self, *_: Any) -> None:
            pass

    with served(Mlflow) as url:
        assert "s3cret" not in page_of_runs("http://me:s3cret]x@host")
        page = f"{url}/#/experiments"
        assert page_of_runs(f"{url}/") == f"{page}/7?workflowType=machine_learning"
        assert page_of_runs(url) == f"{page}?workflowType=machine_learning"
        another = b'{"experiment": {"experiment_id": "../x"}}'
        for answer in (b"<html>", b"[]", b"\xff", b'{"x": ' + b"[" * 100_000, another):
            answers.append(answer)
            assert page_of_runs(url) == f"{page}?workflowType=machine_learning"
    # Nobody answers any more; and no page shows a login.
    assert (
        page_of_runs(url.replace("//", "//me:s3cret@")) == f"{page}?workflowType=machine_learning"
    )
    assert set(asked) == {"/api/2.0/mlflow/experiments/get-by-name?experiment_name=evertrain"}


def ask(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return bytes(answer.read())


@pytest.mark.promise("ui", "loopback")
@pytest.mark.slow
def test_the_pages_are_there_once_their_addresses_are_said(tmp_path: Path) -> None:
    mlflow, prefect = free_port(), free_port()
    ports = ("--mlflow-port", str(mlflow), "--prefect-port", str(prefect))
    with subprocess.Popen(
        [*commands.EVERTRAIN, "ui", *ports],
        cwd=tmp_path,
        # Whatever the environment says of servers.
        env=isolated(tmp_path) | {"PREFECT_SERVER_API_HOST": "0.0.0.0", "MLFLOW_HOST": "0.0.0.0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as pages:
        assert pages.stdout is not None
        lines = []
        while not lines or not lines[-1].startswith("Ctrl-C"):
            lines.append(pages.stdout.readline())
            assert lines[-1], "".join(lines)
        try:
            # MLflow says who may look at its pages.
            assert [line for line in lines if not line.startswith("[MLflow]")] == [
                "starting …\n",
                f"MLflow:  http://127.0.0.1:{mlflow}/#/experiments?workflowType=machine_learning\n",
                f"Prefect: http://127.0.0.1:{prefect}\n",
                "Ctrl-C ends both.\n",
            ]
            assert b"MLflow" in ask(f"http://127.0.0.1:{mlflow}")
            # What Prefect's page shows comes from there.
            settings = json.loads(ask(f"http://127.0.0.1:{prefect}/ui-settings"))
            assert settings["api_url"] == f"http://127.0.0.1:{prefect}/api"
            processes = psutil.Process(pages.pid).children(recursive=True)
            arguments = " ".join(word for one in processes for word in one.cmdline())
            assert "sqlite" not in arguments, "an address may hold a password"
            listening = {
                one.laddr.ip
                for process in processes
                for one in process.net_connections(kind="inet")
                if one.status == psutil.CONN_LISTEN
            }
            assert listening == {"127.0.0.1"}
        finally:
            pages.terminate()
            pages.wait(60)


@pytest.mark.slow
def test_a_server_that_ends_is_told_and_ends_the_other(tmp_path: Path) -> None:
    (tmp_path / "junk.db").write_text("no database")
    done = commands.run(
        [
            *(*commands.EVERTRAIN, "ui", "--tracking-uri", "sqlite:///junk.db"),
            *("--mlflow-port", str(free_port()), "--prefect-port", str(free_port())),
        ],
        cwd=tmp_path,
        env=isolated(tmp_path),
        timeout=120,
    )
    assert done.returncode == 2
    assert "ui: `mlflow ui` ended with code 1" in done.stderr
    assert "MLflow:" not in done.stdout


def test_a_file_with_an_unknown_parameter_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "typo.yaml"
    file.write_text("epocs: 5\n")
    assert main(["retrain", "--config", str(file)]) == 2
    assert "epocs: Extra inputs are not permitted, got 5" in capsys.readouterr().err


def test_a_file_with_a_run_that_is_no_name_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "number.yaml"
    file.write_text("run: 5\n")
    assert main(["retrain", "--config", str(file)]) == 2
    assert "run: Input should be a valid string, got 5" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.98765, "0.9877"),
        (0.0, "0.0000"),
        (-12.5, "-12.5000"),
        (0.00001, "1.0e-05"),
        (-0.0009, "-9.0e-04"),
        (float("nan"), "nan"),
        (7, "7"),
        (None, "-"),
    ],
)
def test_a_number_is_short_and_a_small_one_is_not_shown_as_nothing(
    value: float | None, shown: str
) -> None:
    assert number(value) == shown


@pytest.mark.promise("environment")
def test_a_storage_without_runs_says_where_it_looked_and_which_variable_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERTRAIN_STORAGE", str(tmp_path))
    assert main(["runs", "list"]) == 0
    assert capsys.readouterr().out == f"no runs in {tmp_path}, which EVERTRAIN_STORAGE names\n"
    assert main(["runs", "list", "--storage", str(tmp_path / "x")]) == 0
    assert capsys.readouterr().out == f"no runs in {tmp_path}/x\n"
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVERTRAIN_STORAGE")
    assert main(["runs", "list"]) == 0
    assert capsys.readouterr().out == (
        f"no runs in {tmp_path}/.evertrain/runs: EVERTRAIN_STORAGE is not set, so runs are looked "
        "for below the current directory\n"
    )


def test_an_empty_storage_lists_no_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "list", "--storage", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.promise("settings")
@pytest.mark.slow
def test_workloads_are_listed_with_their_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workloads", "--json"]) == 0
    shipped = [row["workload"] for row in json.loads(capsys.readouterr().out)]
    for name in shipped:
        assert main(["workloads", name, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["type"] == "object"


@pytest.mark.slow
@pytest.mark.promise("dry-run-function")
def test_the_plan_of_a_functions_dry_run_is_lines(tmp_path: Path) -> None:
    function = ("--train-fn", "tests.compat.functions.plain:metrics_only")
    shown = subprocess.check_output(
        [*commands.EVERTRAIN, "retrain", "--run", "planned", *function, "--dry-run"],
        cwd=tmp_path,
        env=isolated(tmp_path),
        text=True,
    )
    first, *plan = shown.splitlines()
    assert first.startswith("all checks have passed, and nothing was trained or stored")
    words = [line.split()[0] for line in plan]
    assert words == ["train", "keep", "choose", "evaluate", "store", "mirror"]
