"""The pages on training functions are true: commands are carried out, code is that of files."""

from __future__ import annotations

import ast
import re
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests import commands
from tests.flows.conftest import ROOT
from tests.flows.deployment.deployed import DELIVERED, filtered
from tests.flows.deployment.page import ENDED, Reader, is_yaml, steps_of
from tests.rank.digests import journal_of
from tests.waiting import wait_for
from tests.workloads.pages import not_in_files
from train_core.storage.run_folder import RunFolder

PAGES = "".join(
    (ROOT / page).read_text() for page in ("docs/bring-your-own.md", "docs/training-functions.md")
)
"""The second one goes on with the runs of the first."""
EXAMPLES = ROOT / "docs/examples"
NIGHTLY = EXAMPLES / "prefect-nightly.yaml"
STEPS = steps_of(PAGES)
REFUSED = "--epochs 20"
KILLED = "--run killed"
KILLED_AFTER = 5
FROM_PYTHON = "import torch\n"
IN_THE_TEXT = ("trainer = TorchTrainer(train_func", "def trainer():\n")
"""How the pieces of code begin that only show what to change in a script."""

# A command is killed: what it leaves is looked at below.
pytestmark = pytest.mark.leaves


def fenced(kind: str) -> list[str]:
    return re.findall(rf"(?ms)^```{kind}\n(.*?)^```$", PAGES)


@pytest.mark.promise("functions-page-code")
def test_every_piece_of_python_on_the_pages_is_in_a_file_or_is_run() -> None:
    others = not_in_files(PAGES, "tumours_*.py")
    assert len(fenced("python")) - len(others) == 3
    assert [one for one in others if not one.startswith((FROM_PYTHON, *IN_THE_TEXT))] == []
    assert len(others) == 3
    for one in others:
        ast.parse(one)


@pytest.mark.promise("functions-page-code")
def test_the_yaml_on_the_pages_is_that_of_the_file_which_is_deployed() -> None:
    (shown,) = fenced("yaml")
    assert shown in NIGHTLY.read_text()


def test_the_nightly_deployments_are_the_delivered_ones_with_other_parameters() -> None:
    def kept(file: Path) -> list[dict[str, Any]]:
        others = {"parameters", "schedules"}
        deployments = yaml.safe_load(file.read_text())["deployments"]
        return [{key: one[key] for key in one.keys() - others} for one in deployments]

    assert kept(NIGHTLY) == kept(DELIVERED)


def test_the_script_says_nothing_of_evertrain() -> None:
    tree = ast.parse((EXAMPLES / "tumours_on_ray.py").read_text())
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else names_of(node))
    }
    assert not imported & {"train_core", "evertrain_flows", "evertrain_tasks"}


def names_of(node: ast.Import) -> list[str]:
    return [one.name for one in node.names]


class FunctionReader(Reader):
    """The reader of these pages, who also kills a command, and keeps what the terminal showed."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.shown = ""

    def follow(self, step: str) -> None:
        if REFUSED in step and not is_yaml(step):
            self.see_refused(step)
        elif KILLED in step:
            self.kill(step)
        else:
            super().follow(step)

    def run(self, command: str) -> str:
        said = super().run(command)
        self.shown += said
        return said

    def see_refused(self, command: str) -> None:
        done = commands.run(["bash", "-c", command], cwd=self.folder, env=self.environment)
        assert done.returncode == 2, done.stdout + done.stderr
        self.shown += done.stderr

    def kill(self, command: str) -> None:
        """Start it, and kill its process in the middle."""
        log = self.home / "killed.log"
        process = self.start(command, log)
        folder = self.opened("killed")

        def has_enough() -> bool:
            newest = folder.newest() if folder.exists() else None
            return newest is not None and newest.step >= KILLED_AFTER

        wait_for(has_enough, 200, log.read_text, ended=process.poll)
        below = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
        process.wait()
        _, alive = psutil.wait_procs(below, 60)
        assert not alive

    def opened(self, run: str) -> RunFolder:
        return RunFolder(str(self.folder / ".evertrain/runs"), run)

    def _see_all_completed(self) -> None:
        """The flow runs of the deployment have; one of the command line was killed."""
        runs = [one for one in filtered(self.api, "flow_runs") if one["deployment_id"]]
        # Those of the nights to come are scheduled.
        assert {one["state_type"] for one in runs} & ENDED == {"COMPLETED"}


@pytest.mark.promise("page-commands")
@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_reader_can_carry_out_both_pages_word_for_word(tmp_path: Path) -> None:
    reader = FunctionReader(tmp_path)
    try:
        for step in STEPS:
            reader.follow(step)
        (code,) = [one for one in fenced("python") if one.startswith(FROM_PYTHON)]
        (reader.folder / "from_python.py").write_text(code)
        reader.run("python from_python.py")
    finally:
        reader.close()
    shown = {alike(line) for line in reader.shown.splitlines()}
    # On the pages a long line goes on below its value.
    blocks = [re.sub(r"\n {13}", " ", block) for block in fenced("text")]
    expected = [alike(line) for block in blocks for line in block.splitlines()]
    assert [line for line in expected if line not in shown] == []
    undisturbed = journal_of(reader.opened("first"))
    assert len(undisturbed) == 20
    assert journal_of(reader.opened("killed"))[:20] == undisturbed


def alike(line: str) -> str:
    """A line of the terminal without its numbers, its lines of boxes, and where the reader is."""
    line = re.sub(r"\S*/\.evertrain", "…/.evertrain", line)
    line = re.sub(r"-[0-9a-f]{8}\b", "-X", line)
    line = re.sub(r"\d+(\.\d+)?", "N", line)
    return " ".join(re.sub(r"[┏┡└├━─┳╇┴┓┩┘]", "", line).split())
