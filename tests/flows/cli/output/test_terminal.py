"""One door to the terminal: nothing of what is shown is obeyed, and nothing goes round it."""

from __future__ import annotations

import ast
import json
from io import StringIO
from pathlib import Path

import pytest

import evertrain_flows.cli
from evertrain_flows.cli.app import main
from evertrain_flows.cli.commands.diff import print_diff
from evertrain_flows.cli.output.listings import print_mapping, print_rows
from evertrain_flows.cli.output.progress import _Bar, _Lines
from evertrain_flows.cli.output.summary import print_summary
from evertrain_flows.cli.output.terminal import MOST_COLUMNS, MOST_IN_A_CELL, Screen, complain, say
from evertrain_flows.cli.run_pipeline import show_warnings
from tests.flows.test_results import REPORT, checkpoint, evaluated
from tests.hostile.whole_run import reseal
from tests.rank.alone import create
from tests.storage.samples import commit, manifest
from train_core import TrainConfig
from train_core.client.diff import Diff
from train_core.client.live import Live
from train_core.differences import Comparison, ValueDifference
from train_core.storage.coordination.holder import Holder
from train_core.storage.coordination.pins import pin
from train_core.storage.records.names import LEASES, LeaseName
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import RunWriter, quarantine

HOSTILE = (
    "x[/nope]",
    "[bold red]red[/]",
    "[link=http://evil]here[/link]",
    ":warning:",
    "\x1b[31mred\x1b]0;title\x07",
    "\x9b31m",
    "one\nFORGED",
    "\rFORGED",
    "left\u202egnihton",
)
"""What rich or a terminal would obey."""


def refuse_obeyed(text: str) -> None:
    """Whatever of `HOSTILE` is there is there as text."""
    assert not set(text) & set("\x1b\x9b\x07\r\u202e")
    assert not any(line.startswith("FORGED") for line in text.splitlines())
    assert "⚠" not in text


@pytest.fixture
def storage(tmp_path: Path) -> str:
    """A run whose names, metrics, reasons, pins and monitor are hostile."""
    folder = RunFolder(str(tmp_path), "run")
    config = TrainConfig(monitor=HOSTILE[0], settings={text: text for text in HOSTILE})
    create(folder, config, forked_from=HOSTILE[4], code=dict.fromkeys(HOSTILE, HOSTILE[4]))
    pinned, name = (commit(folder, step, 1) for step in (1, 2))
    pin(folder.store, pinned, "infer-0123abcd", f"it is {' '.join(HOSTILE)}")
    odd = manifest(3).model_copy(update={"metrics": dict.fromkeys(HOSTILE, 0.5)})
    RunWriter(folder, 1).commit(odd)
    quarantine(folder, name, f"it is {' '.join(HOSTILE)}")
    # What the objects themselves are called; a name on a disk has no slash.
    for called in (text for text in HOSTILE if "/" not in text):
        for above in ("", "run/predictions", "run/evaluations", "run/checkpoints"):
            (tmp_path / above / called).mkdir(parents=True)
        (tmp_path / called / "run.json").write_bytes(folder.store.read("run.json"))
        for above in (f"run/pins/{pinned}", "run/journal", "run/lease"):
            (tmp_path / above).mkdir(parents=True, exist_ok=True)
            (tmp_path / above / f"{called}.json").write_text("{}")
    return str(tmp_path)


@pytest.mark.promise("terminal")
@pytest.mark.parametrize(
    "command",
    [
        ("ls", "run"),
        ("show", "run"),
        ("show", "run/step-00000003-a0001"),
        ("runs", "list"),
        ("runs", "status", "run"),
        ("verify", "run"),
        ("prune", "run", "--dry-run"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_hostile_names_and_reasons_are_shown_as_text(
    command: tuple[str, ...],
    form: tuple[str, ...],
    storage: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EVERTRAIN_STORAGE", storage)
    try:
        code = main([*command, *form])
    except SystemExit as ended:
        code = ended.code
    captured = capsys.readouterr()
    assert code in (0, 1, 2)
    assert "Traceback" not in captured.err
    assert captured.out
    refuse_obeyed(captured.out + captured.err)
    if form:
        assert captured.out.isascii()
        json.loads(captured.out)


@pytest.mark.promise("terminal")
def test_a_row_of_a_table_is_one_line_in_a_file_however_long_it_is() -> None:
    file, fault = StringIO(), f"/{'long/' * 190}run.json is a pipe"
    Screen(file).table(["what", "fault"], [["run.json", fault]])
    (row,) = [line for line in file.getvalue().splitlines() if "long/" in line]
    assert row.split("│")[1].strip() == "run.json"
    assert fault in row


@pytest.mark.promise("terminal")
def test_the_host_of_the_process_that_has_a_run_is_text(
    storage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    holder = Holder.here().model_copy(update={"host": " ".join(HOSTILE)})
    lease = RunFolder(storage, "run").store.uri(f"{LEASES}/{LeaseName(1)}")
    Path(lease).parent.mkdir(exist_ok=True)
    Path(lease).write_text(holder.model_dump_json())
    assert main(["prune", "run", "--storage", storage]) == 2
    told = capsys.readouterr().err
    assert "is being driven by process" in told
    assert r"x[/nope] [bold red]red[/] [link=http://evil]here[/link] :warning: \x1b[31mred" in told
    assert told.count("\n") == 1
    refuse_obeyed(told)


@pytest.mark.promise("terminal")
def test_what_is_logged_while_a_command_runs_is_text(
    storage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(storage, "run")
    odd = {"metrics": {f"{text} http://me:hunter2@host": "x" for text in HOSTILE}}
    reseal(folder, "checkpoints/step-00000003-a0001/manifest.json", lambda found: found | odd)
    assert main(["prune", "run", "--storage", storage]) == 0
    told = capsys.readouterr().err
    assert told.startswith("warning: checkpoint step-00000003-a0001 of run 'run' is quarantined: ")
    assert told.count("\n") == 1
    assert "hunter2" not in told
    refuse_obeyed(told)


@pytest.mark.promise("terminal")
@pytest.mark.parametrize("text", HOSTILE)
def test_every_way_of_showing_shows_text(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    difference = ValueDifference(name=text, kind="values", a=text, b=None)
    compared = Comparison(num_tensors=1, tensors=[], values=[difference], metrics=[difference])
    print_rows([{text: text, "number": 1.5}], as_json=False, empty="")
    print_rows([], as_json=False, empty=text)
    print_mapping({text: text, "list": [text]}, as_json=False)
    shown = {"checkpoints": compared, "compared": "best", "records": None, "newest": None}
    print_diff(Diff(a=text, b=text, **shown))
    say(text)
    complain(text)
    report = REPORT.model_copy(
        update={
            "run": text,
            "best": checkpoint(10),
            "evaluations": [
                evaluated(10, 0.5).model_copy(update={"metrics": {text: 0.5}}),
                evaluated(10, 0.5, "test"),
            ],
            "test_metrics": {text: 0.5},
            "timeline": {text: 1.0},
        }
    )
    print_summary(report, text, Screen())
    show_warnings(Screen(), f"warning: {text}")
    captured = capsys.readouterr()
    refuse_obeyed(captured.out + captured.err)


@pytest.mark.promise("terminal")
@pytest.mark.parametrize("text", HOSTILE)
def test_the_progress_of_a_training_is_text(text: str) -> None:
    live = Live(
        stage=text,
        attempt=1,
        step=6,
        total_steps=0,
        epoch=0,
        epochs=1,
        metrics={text: 1.0},
        time=1.0,
    )
    shown = StringIO()
    lines = _Lines(Screen(shown))
    lines.show([text], live)
    lines.show([text], live)
    refuse_obeyed(shown.getvalue())
    # A bar moves the cursor itself: here what would be obeyed is looked for by its content.
    drawn = StringIO()
    bar = _Bar(Screen(drawn, is_terminal=True))
    bar.show([text], live)
    bar.open()
    bar.close()
    assert text.isprintable() or text not in drawn.getvalue()
    assert "⚠" not in drawn.getvalue()
    assert "\x1b]8;" not in drawn.getvalue()


def test_a_table_shows_what_a_person_reads(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([{f"m{n}": 1 for n in range(1000)}], as_json=False, empty="")
    assert f"… and {1000 - MOST_COLUMNS} more columns" in capsys.readouterr().out
    print_mapping({"name": "x" * 120_000}, as_json=False)
    shown = capsys.readouterr().out
    assert len(shown) < 3 * MOST_IN_A_CELL
    assert "more characters)" in "".join(shown.split("\n"))


def test_no_markup_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """rich raises MarkupError for a tag that closes nothing."""
    print_rows([{"reason": "x[/nope]"}], as_json=False, empty="")
    assert "x[/nope]" in capsys.readouterr().out


DOORS = {
    "terminal.py": {"rich", "stdout", "stderr", "input"},
    # The end of the process: what was written before goes out.
    "prefect_server.py": {"stdout", "stderr"},
}


def ways_out(tree: ast.AST) -> set[str]:
    """The names by which a module writes to the terminal, or reads from it."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found |= {one.name.partition(".")[0] for one in names}
            case ast.ImportFrom(module=str(module)):
                found.add(module.partition(".")[0])
            case ast.Name(id="print" | "input" as name):
                found.add(name)
            case ast.Attribute(attr=name) if name.strip("_") in ("stdout", "stderr"):
                found.add(name.strip("_"))
    return found & {"rich", "print", "input", "stdout", "stderr", "pprint", "click", "curses"}


@pytest.mark.promise("terminal")
def test_nothing_goes_round_the_door() -> None:
    package = Path(evertrain_flows.cli.__path__[0])
    modules = {path: ways_out(ast.parse(path.read_text())) for path in package.rglob("*.py")}
    assert len(modules) > 20
    found = {path.name: used for path, used in modules.items() if used}
    assert all(used <= DOORS.get(name, set()) for name, used in found.items()), found
    # The flows, the tasks and what programs call show nothing by themselves.
    root = package.parents[1]
    for folder in (root / "tasks", root / "flows", root / "train_core" / "client"):
        for path in folder.rglob("*.py"):
            if package not in path.parents:
                used = ways_out(ast.parse(path.read_text()))
                assert used <= ALLOWED.get(path.name, set()), path


ALLOWED = {
    # The ends of processes, and the programs that they start.
    "prefect_engine.py": {"stdout", "stderr"},
    "databases.py": {"stdout", "stderr"},
    "isolated.py": {"stdout", "stderr"},
    "pipe.py": {"stdout"},
    "verify_resume.py": {"stdout", "stderr"},
    # The driver's log, for who scores in a program: `fit` shows it in the same way.
    "scoring.py": {"print"},
}
