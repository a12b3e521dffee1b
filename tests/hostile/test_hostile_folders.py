"""Commands on run folders that an enemy wrote: no traceback, soon, in little memory, nothing else.

One process runs the commands, without a driver. `make test` tries a known case of each kind and a
few others, `make test-all` all known ones, `make hostile` 2,000 others; ten of the known ones go
through the program itself.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from evertrain_flows.cli.app import main
from tests import commands
from tests.hostile.spoiling import KNOWN, QUICK, Spoil, spoilers
from tests.hostile.whole_run import NEWEST, everything, whole_run
from tests.marks import SLOW
from train_core.client import isolated
from train_core.errors import EvertrainError
from train_core.storage.run_folder import RunFolder
from train_core.timing import TIMING
from train_core.tools.isolated_call import call

LIMIT_S = 5.0
LIMIT_BYTES = 2**30
BUSY_S = 20.0
"""Other tests may share the cores: so much longer may it take by the clock."""
WAIT_S = TIMING.coordination.standstill_s + TIMING.coordination.dying_grace_s
"""What changes a run waits so long for a lease that says that a process elsewhere has the run."""
RUN = "run"
Command = Callable[[str], object]

LOOKS: dict[str, Command] = {
    "ls storage": lambda storage: main(["ls", storage]),
    "ls run": lambda storage: main(["ls", f"{storage}/{RUN}"]),
    "show": lambda storage: main(["show", RUN, "--storage", storage]),
    "show json": lambda storage: main(["show", RUN, "--storage", storage, "--json"]),
    "show checkpoint": lambda storage: main(["show", f"{RUN}/{NEWEST}", "--storage", storage]),
    "verify": lambda storage: main(["verify", RUN, "--storage", storage]),
    "runs list": lambda storage: main(["runs", "list", "--storage", storage, "--json"]),
    "runs status": lambda storage: main(["runs", "status", RUN, "--storage", storage]),
    "prune --dry-run": lambda storage: main(["prune", RUN, "--storage", storage, "--dry-run"]),
    "diff": lambda storage: main(["diff", RUN, "good", "--storage", storage]),
    "diff checkpoints": lambda storage: main(
        ["diff", f"{RUN}/{NEWEST}", f"good/{NEWEST}", "--storage", storage]
    ),
}
CHANGES: dict[str, Command] = {
    "export": lambda storage: main(
        ["export", RUN, f"{storage}/exported.safetensors", "--storage", storage]
    ),
    "export newest": lambda storage: main(
        ["export", f"{RUN}/{NEWEST}", f"{storage}/newest.safetensors", "--storage", storage]
    ),
    "stop": lambda storage: main(["runs", "stop", RUN, "--storage", storage]),
    "fork": lambda storage: main(
        ["runs", "fork", RUN, "--at", "6", "--to", "fork", "--storage", storage]
    ),
    "prune": lambda storage: main(["prune", RUN, "--storage", storage]),
    "delete": lambda storage: main(
        ["runs", "delete", RUN, "--yes", "--tracking-uri", "", "--storage", storage]
    ),
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return whole_run(str(tmp_path_factory.mktemp("template")))


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without the processes that commands start for torch, whose start takes seconds each time.

    What the commands leave out they warn about: thousands of times here.
    """

    def called(function: str, **arguments: Any) -> Any:
        return call(function, json.loads(json.dumps(arguments)))

    monkeypatch.setattr(isolated, "isolated_call", called)
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def ends_well(act: Command, storage: str, within_s: float = LIMIT_S) -> None:
    """The command ends with a code, or with an error of evertrain's; soon; in little memory."""
    shown = StringIO()
    before, begun, begun_cpu_s = _resident_bytes(), time.monotonic(), _cpu_s()
    try:
        with redirect_stdout(shown), redirect_stderr(shown):
            code = act(storage)
    except SystemExit as ended:
        code = ended.code
    except (EvertrainError, OSError):
        # What `main` tells in a line.
        code = 2
    assert code in (0, 1, 2, None)
    # Whoever waits uses none.
    assert _cpu_s() - begun_cpu_s < LIMIT_S
    assert time.monotonic() - begun < BUSY_S + within_s
    assert _peak_bytes() - before < LIMIT_BYTES
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", shown.getvalue())


def _cpu_s() -> float:
    """Of this process, and of those that it has started and that have ended."""
    return sum(os.times()[:4])


def _resident_bytes() -> int:
    """The memory of this process now, from which on its peak is counted."""
    Path("/proc/self/clear_refs").write_text("5")
    return _in_status("VmRSS")


def _peak_bytes() -> int:
    return _in_status("VmHWM")


def _in_status(field: str) -> int:
    found = re.search(
        rf"^{field}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE
    )
    assert found
    return int(found[1]) * 1024


def meets(template: RunFolder, spoils: list[Spoil]) -> None:
    """Run every command on the spoiled run, which lies beside a good one and another folder."""
    with TemporaryDirectory() as place:
        storage, outside = Path(place, "storage"), Path(place, "outside")
        for copied in (storage / RUN, storage / "good", outside / RUN):
            shutil.copytree(template.url, copied)
        folder = RunFolder(str(storage), RUN)
        for spoil in spoils:
            spoil(folder, outside)
        around = everything(outside) | everything(storage / "good")
        here = everything(storage / RUN)
        for act in LOOKS.values():
            ends_well(act, str(storage))
        assert everything(storage / RUN) == here
        assert everything(outside) | everything(storage / "good") == around
        for act in CHANGES.values():
            ends_well(act, str(storage), LIMIT_S + WAIT_S)
        assert everything(outside) | everything(storage / "good") == around


def known_cases() -> Iterator[Any]:
    """All known cases; of those that spoil files in the same way, the first one runs always."""
    seen = set()
    for name in KNOWN:
        way = re.sub(r"^[a-z]+(/\S+|\.json)? (is|has)\b", "", name)
        yield pytest.param(name, marks=SLOW if way in seen or name not in QUICK else ())
        seen.add(way)


@pytest.mark.promise("hostile-folders")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", list(known_cases()))
def test_a_known_case_ends_well(template: RunFolder, name: str) -> None:
    meets(template, [KNOWN[name]])


def check(template: RunFolder, spoiled: tuple[str, list[Spoil]]) -> None:
    name, spoils = spoiled
    try:
        meets(template, spoils)
    except BaseException as error:
        error.add_note(f"spoiled: {name}")
        raise


_FEW, _MANY = 12, 2000
_SETTINGS = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}


@pytest.mark.promise("hostile-folders")
@pytest.mark.timeout(300)
@settings(max_examples=_FEW, derandomize=True, **_SETTINGS)
@given(spoiled=spoilers(QUICK))
def test_some_hostile_folders_end_well(
    template: RunFolder, spoiled: tuple[str, list[Spoil]]
) -> None:
    check(template, spoiled)


@pytest.mark.table
@pytest.mark.timeout(7200)
@settings(max_examples=_MANY, **_SETTINGS)
@given(spoiled=spoilers(sorted(KNOWN)))
def test_many_hostile_folders_end_well(
    template: RunFolder, spoiled: tuple[str, list[Spoil]]
) -> None:
    check(template, spoiled)


THROUGH_THE_PROGRAM = [
    ("verify", f"checkpoints/{NEWEST}/model.safetensors is a pipe", 1),
    ("verify", f"checkpoints/{NEWEST}/manifest.json is a folder", 1),
    ("runs list", "run.json is deep", 0),
    ("runs list", "report.json is a pipe", 0),
    ("ls run", f"checkpoints/{NEWEST}/manifest.json is of format 2", 0),
    ("show", "live.json is a pipe", 0),
    ("runs status", "lease 10^18 - 1", 0),
    ("prune --dry-run", "10,000 orphans", 0),
    ("ls run", "many metrics", 0),
    ("verify", f"checkpoints/{NEWEST} is a link", 1),
]
ARGUMENTS = {
    "verify": ["verify", RUN],
    "runs list": ["runs", "list"],
    "ls run": ["ls"],
    "show": ["show", RUN],
    "runs status": ["runs", "status", RUN],
    "prune --dry-run": ["prune", RUN, "--dry-run"],
}


@pytest.mark.promise("hostile-folders")
@pytest.mark.slow
@pytest.mark.parametrize(("command", "name", "code"), THROUGH_THE_PROGRAM)
def test_the_program_itself_ends_well(
    template: RunFolder, tmp_path: Path, command: str, name: str, code: int
) -> None:
    storage, outside = tmp_path / "storage", tmp_path / "outside"
    for copied in (storage / RUN, outside / RUN):
        shutil.copytree(template.url, copied)
    KNOWN[name](RunFolder(str(storage), RUN), outside)
    where = [str(storage / RUN)] if command == "ls run" else ["--storage", str(storage)]
    program = [*commands.EVERTRAIN, *ARGUMENTS[command], *where]
    with (tmp_path / "told").open("w+") as told:
        process = subprocess.Popen(program, stdout=told, stderr=told)
        try:
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            if process.returncode is None:
                process.kill()
                process.wait()
        told.seek(0)
        text = told.read()
    assert process.returncode == code, text
    assert "Traceback" not in text
    assert used.ru_utime + used.ru_stime < LIMIT_S
    assert used.ru_maxrss * 1024 < LIMIT_BYTES
