"""The commands of a page of docs, and a reader who carries them out one after the other."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmarks.services import answers_at, free_port, wait_until_up
from tests import commands
from tests.chaos.standing import HOLD, NOTES
from tests.flows.conftest import ROOT, isolated
from tests.flows.deployment.deployed import HELD, filtered, flow_runs, message, state, wait_for

STAYS = ("prefect server start", "prefect worker start", "evertrain ui")
"""What runs until it is ended: the reader has a terminal for each."""
ENDED = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}
PATIENCE_S = 400
PLACEHOLDER = re.compile(r"\b(ID|NAME|RUN)\b")


def without_other_code(page: str) -> str:
    """The page without its Python, and without what a terminal shows."""
    return re.sub(r"(?m)^```(?:python|text)\n(?:.*\n)*?^```$", "", page)


def blocks_of(page: str) -> list[str]:
    """The indented blocks of commands, and the fenced ones of YAML, in their order."""
    page = re.sub(r"\\\n *", "", without_other_code(page))
    return re.findall(r"(?m)(?:^    \S.*\n)+|^```yaml\n(?:.*\n)*?^```$", page)


def steps_of(page: str) -> list[str]:
    """All commands, a line each, and all blocks of YAML."""
    steps = []
    for block in blocks_of(page):
        if block.startswith("```"):
            steps.append(block.removeprefix("```yaml\n").removesuffix("```"))
        else:
            steps += [re.sub(r"\s+#.*", "", line).strip() for line in block.splitlines()]
    return [step for step in steps if step]


def is_yaml(step: str) -> bool:
    return "\n" in step


def mentioned(page: str) -> set[str]:
    """The programs' commands that stand in the text, between backticks."""
    text = re.sub(r"(?m)^    \S.*$|^```yaml\n(?:.*\n)*?^```$", "", without_other_code(page))
    inline = re.findall(r"`((?:prefect|evertrain)\s[^`]+)`", text)
    return {" ".join(one.split()) for one in inline}


class Reader:
    """Somebody with evertrain installed, who does what the page says in a home of his own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = free_port()
        self.notes = home / "notes"
        self.folder = home / "evertrain"
        self.folder.mkdir()
        for part in ("deployments", "docs"):
            (self.folder / part).symlink_to(ROOT / part)
        self.environment = isolated(home) | {
            "HOME": str(home),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PREFECT_SERVER_API_PORT": str(self.port),
            # Nobody listens there: what is sent is tested in test_notifications.py.
            "SLACK_WEBHOOK_URL": "http://127.0.0.1:9/",
            # What the runs of HeldDigits obey, that are there to be cancelled.
            HOLD: "mid-epoch@0",
            NOTES: str(self.notes),
        }
        self._terminals = ExitStack()
        self._cancelled = ""

    @property
    def api(self) -> str:
        return self.environment["PREFECT_API_URL"]

    def close(self) -> None:
        self._terminals.close()

    def follow(self, step: str) -> None:
        """Do what a step of the page says, and see that it works."""
        if is_yaml(step):
            self._edit(yaml.safe_load(step))
        elif step.startswith("cd "):
            self.folder = Path(step.removeprefix("cd ").replace("~", str(self.home)))
        elif step.startswith("export "):
            name, _, value = step.removeprefix("export ").partition("=")
            self.environment[name] = value.replace(":4200", f":{self.port}")
        elif step.startswith(STAYS):
            self._keep(step)
        else:
            self.run(self.filled_in(step))
            if " retry " in step:
                self._wait(lambda: state(self.api, self._cancelled) == "COMPLETED")
            if " deployment run " in step:
                self._see_all_completed()

    def run(self, command: str) -> str:
        """What the command says. It must succeed."""
        done = commands.succeed(["bash", "-c", command], cwd=self.folder, env=self.environment)
        return done.stdout

    def start(self, command: str, log: Path) -> subprocess.Popen[bytes]:
        """The command's process; the log has what it says."""
        called = ["bash", "-c", f"exec {command}"]
        return commands.begin(called, log, "wb", cwd=self.folder, env=self.environment)

    def filled_in(self, command: str) -> str:
        """The command with what a reader puts in for the words in capitals."""
        if not PLACEHOLDER.search(command):
            return command
        if " schedule " in command:
            value = self._schedule()
        elif " cancel " in command:
            value = self._held()
        elif " retry " in command:
            value = self._cancelled_run()
        elif " resume " in command:
            self.run(f"prefect flow-run cancel {self._held()}")
            value = self._cancelled_run()
        else:
            raise AssertionError(f"nobody knows what to put in here: {command}")
        return PLACEHOLDER.sub(value, command)

    def _wait(self, what: Callable[[], object]) -> None:
        wait_for(what, self.home, PATIENCE_S)

    def _schedule(self) -> str:
        (deployment,) = filtered(
            self.api, "deployments", deployments={"name": {"any_": ["retrain"]}}
        )
        (schedule,) = deployment["schedules"]
        return str(schedule["id"])

    def _held(self) -> str:
        """The id of a flow run that trains, and goes on to do so until it is cancelled."""
        self.notes.mkdir(exist_ok=True)
        for note in self.notes.iterdir():
            note.unlink()
        self._cancelled = f"cancelled-{len(filtered(self.api, 'flow_runs'))}"
        asked = json.dumps({"run": self._cancelled, **HELD})
        self.run(f"prefect deployment run retrain/retrain --param 'parameters={asked}'")
        self._wait((self.notes / "held").exists)
        (flow_run,) = flow_runs(self.api, self._cancelled)
        return str(flow_run["id"])

    def _cancelled_run(self) -> str:
        """The name of the run that was told to stop, when it has."""
        name = self._cancelled
        self._wait(lambda: state(self.api, name) in {"CANCELLING", "CANCELLED"})
        (self.notes / "go-on").touch()
        self._wait(lambda: state(self.api, name) == "CANCELLED")
        # Prefect says so twice; the second time, a retry before it would be undone.
        self._wait(lambda: "successfully" in message(self.api, name))
        return name

    def _edit(self, changes: dict[str, Any]) -> None:
        """Change a copy of prefect.yaml as a block of the page shows it."""
        file = self.folder / "prefect.yaml"
        if not file.exists() or "name" not in changes:
            # An example of what a reader has and we do not: a bucket, other machines.
            return
        deployed = yaml.safe_load(file.read_text())
        (named,) = (one for one in deployed["deployments"] if one["name"] == changes["name"])
        named.update(changes)
        file.write_text(yaml.safe_dump(deployed))

    def _keep(self, command: str) -> None:
        """Run it in a terminal of its own; the pages end again."""
        log = self.home / f"{command.replace(' ', '-')}.log"
        if command == "evertrain ui":
            command += f" --prefect-port {self.port} --mlflow-port {free_port()}"
        process = self.start(command, log)
        self._terminals.callback(end, process)
        if "worker" in command:
            self._wait(lambda: "started" in log.read_text())
            return
        health = f"http://127.0.0.1:{self.port}/api/health"
        wait_until_up(lambda: answers_at(health), log, process)
        if "ui" in command:
            self._wait(lambda: "Prefect: http://127.0.0.1" in log.read_text())
            end(process)

    def _see_all_completed(self) -> None:
        """Every flow run that is not there to be cancelled came to a good end."""
        shown = filtered(self.api, "flow_runs")
        ended = {one["name"]: one["state_type"] for one in shown if one["state_type"] in ENDED}
        assert set(ended.values()) <= {"COMPLETED"} | ({"CANCELLED"} if self._cancelled else set())


def end(process: subprocess.Popen[bytes]) -> None:
    """End what stays, as Ctrl-C does; what does not end is killed."""
    below = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    commands.end(process, signal.SIGINT)
    _, left = psutil.wait_procs(below, timeout=10)
    for one in left:
        one.kill()
