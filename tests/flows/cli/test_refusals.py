"""Whatever is typed: one line that says what is wrong, within seconds, and no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest
from fsspec import available_protocols
from hypothesis import given, settings
from hypothesis import strategies as st

from evertrain_flows.cli.app import Evertrain, main
from evertrain_flows.cli.configuration import configuration_of
from evertrain_flows.cli.refusals import with_plain_json
from tests import commands
from tests.marks import slow
from tests.web import QuietFiles, served
from train_core.config.json_text import parse_object
from train_core.errors import ConfigError
from train_core.storage.objects.storage_protocols import refuse_unserved

LONG = "9" * 5000
PASSWORD = "hunter2"


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line with which the command refuses."""
    began = time.monotonic()
    assert main(arguments) == 2
    assert time.monotonic() - began < 5
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("evertrain: ")
    assert captured.err.count("\n") == 1
    assert captured.err[:-1].isprintable()
    assert len(captured.err) < 21_000
    assert PASSWORD not in captured.err
    return captured.err


@pytest.mark.promise("one-line-refusal")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--settings", "[" * 100_000], "--settings: its brackets are more than 100 deep"),
        (["--settings", '{"a":' * 30_000], "--settings: its brackets are more than 100 deep"),
        (["--settings={"], "--settings: give a JSON object, as '{\"name\": 1}': from character 2"),
        (["--settings", "width"], "--settings: give a JSON object"),
        (["--settings", "[1]"], "--settings: give a JSON object, as '{\"name\": 1}', got '[1]'"),
        (["--settings", '{"a": 1, "a": 2}'], "--settings: it gives 'a' twice"),
        (["--settings", f'{{"a": {LONG}}}'], "--settings: a number in it has 5000 digits"),
        (["--settings", f'{{"a": -{LONG}}}'], "--settings: a number in it has 500"),
        (["--train-loop-config", "{]"], "--train-loop-config: give a JSON object"),
        (
            ["--runtime-env", '{"py_modules": 5}'],
            "runtime_env: py_modules in it is a list of paths",
        ),
        (["--runtime-env", '{"py_modules": [5]}'], "py_modules in it is a list of paths"),
        (["--runtime-env", '{"working_dir": {}}'], "working_dir in it is a path or a URL"),
        (["--runtime-env", f'{{"env_vars": {{"{PASSWORD}": 5}}}}'], "values are texts"),
        (["--runtime-env", f'{{"env_vars": {{"A": "{PASSWORD}"'], "--runtime-env: give a JSON"),
        (["--init-from-allow", '{"'], "--init-from-allow: its value is not understood"),
        (["--epochs", LONG], "epochs: Unable to parse input string as an integer"),
        (["--num-workers", "1," + LONG], "num_workers: Unable to parse"),
        (["--workload", "x[/nope]\x1b[31m"], r"got 'x[/nope]\x1b[31m'"),
        (["--workload", "x" * 120_000], "more characters)"),
        (["--\x1b[31m"], r"unrecognized arguments: --\x1b[31m"),
        (["--tracking-uri", f"http://me:{PASSWORD}@host"], "got 'http://***@host'"),
        (["--tracking-uri", f"http://me:{PASSWORD}/x@host"], "got 'http://***@host'"),
        (["--tracking-uri", f"postgresql://h/d?password={PASSWORD}"], "?password=***'"),
        (["--storage", f"ftp://me:{PASSWORD}@host/x"], "got 'ftp://***@host/x'"),
    ],
    ids=lambda one: str(one)[:40],
)
def test_bad_parameters_are_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(["retrain", *arguments], capsys)


@pytest.mark.promise("one-line-refusal")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", f"run/step-{LONG}-a0001"], "there is no run 'run/step-999"),
        (["show", f"run/step-00000001-a{LONG}"], "there is no run"),
        (["show", "x" * 120_000], "more characters)"),
        (["runs", "extend", "run", "--epochs", LONG], "epochs: String should match pattern"),
        (["runs", "fork", "run", "--at", LONG], "at: Unable to parse"),
        (["runs"], "CLI subcommand is required"),
        (["ls", "\x1b]0;title\x07"], r"\x1b]0;title\x07"),
        (["ls", "one\nFORGED"], "one FORGED"),
        (["verify", "{web}/x"], "there is no run 'http://***@127.0.0.1:"),
        (["ls", "{web}/x"], "http://***@127.0.0.1:"),
        (["show", "run", "--storage", "{web}/x"], "http://***@127.0.0.1:"),
        (["ls", "\ud800"], r"'\ud800' is no address"),
        (["show", "run", "--storage", "a\0b"], r"'a\x00b' is no address"),
        (["workloads", f"http://me:{PASSWORD}@host/x"], "got 'http://***@host/x'"),
        (["workloads", "x[/nope]\x1b[31m:X"], r"got 'x[/nope]\x1b[31m:X'"),
        (["diff", "x[/nope]", "y"], "there is no run 'x[/nope]'"),
        (["\x1b[31m"], r"invalid choice: '\x1b[31m'"),
    ],
    ids=lambda one: str(one)[:40],
)
def test_bad_names_and_addresses_are_one_line(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with served(partial(QuietFiles, directory=str(tmp_path))) as web:
        with_login = web.replace("://", f"://me:{PASSWORD}@")
        arguments = [one.replace("{web}", with_login) for one in arguments]
        assert message in refused(arguments, capsys)


UNSERVED = (
    *("ftp://host/x", "github://x/y", "reference://x", "dir::file://x", "zip://x", "tar://x"),
    *("data://x", "generic://x", "webhdfs://x", "simplecache::s3://bucket/x", "nonsense://x"),
)


@pytest.mark.promise("one-line-refusal")
@pytest.mark.parametrize("storage", UNSERVED)
@pytest.mark.parametrize(
    "command",
    [
        ["ls", "{}"],
        ["show", "run", "--storage", "{}"],
        slow(["runs", "list", "--storage", "{}"]),
        slow(["verify", "{}/run"]),
        slow(["export", "{}/run", "weights"]),
        slow(["retrain", "--storage", "{}"]),
    ],
    ids=lambda one: one[0],
)
def test_a_storage_that_cannot_be_opened_is_one_line(
    storage: str, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    message = refused([part.format(storage) for part in command], capsys)
    assert f"storage '{storage}" in message
    assert "cannot be used: " in message


OF_SERVERS = {"s3", "s3a", "http", "https", "hf"}


@pytest.mark.parametrize("protocol", sorted({*available_protocols()} - OF_SERVERS))
def test_no_protocol_is_a_traceback(
    protocol: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Servers are waited for: tests/storage/objects has their outages."""
    monkeypatch.chdir(tmp_path)
    assert main(["show", "run", "--storage", f"{protocol}://127.0.0.1:9/x"]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("evertrain: ")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("url", ["s3://bucket/x", "memory://x", "file:///x", "https://host/x"])
def test_a_storage_that_an_address_opens_is_one(url: str) -> None:
    refuse_unserved(url)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=50)
@given(st.dictionaries(st.text(), JSON, max_size=3))
def test_every_json_object_arrives_as_it_was_typed(given_settings: dict[str, object]) -> None:
    """Quotes, backslashes, brackets and commas in texts: the library's own rules are simpler."""
    typed = ["retrain", f"--settings={json.dumps(given_settings)}"]
    arguments = with_plain_json(typed)
    parsed = Evertrain(_cli_parse_args=arguments, **configuration_of(arguments))  # type: ignore[arg-type]
    assert parsed.retrain is not None
    assert parsed.retrain.settings == given_settings


def test_only_json_flags_are_read_as_json() -> None:
    typed = ["retrain", "--run", "{", "--settings", '{"a": 1}', "--workload", "[[["]
    assert with_plain_json(typed) == typed
    with pytest.raises(ConfigError, match="--settings"):
        with_plain_json(["--settings", "{"])


def test_a_terminal_of_few_characters_gets_escapes(tmp_path: Path) -> None:
    done = subprocess.run(
        [*commands.EVERTRAIN, "runs", "list", "--storage", str(tmp_path / "Ärger")],
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": os.getcwd()},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0
    assert rb"\xc4rger" in done.stdout


@pytest.mark.parametrize("nested", ['{"a":[%s]}', '{"a":{"b":%s}}', "[[%s]]"])
@pytest.mark.parametrize("times", [50, 51, 200, 100_000])
def test_an_object_is_a_hundred_deep_at_most(nested: str, times: int) -> None:
    before, after = nested.split("%s")
    text = '{"x":' + before * (times - 1) + '{"y":"[[["}' + after * (times - 1) + "}"
    if times == 50:
        assert parse_object(text)["x"]
    else:
        with pytest.raises(ValueError, match="its brackets are more than 100 deep"):
            parse_object(text)
