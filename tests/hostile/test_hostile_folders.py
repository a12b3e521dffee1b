"""Commands on run folders that an enemy wrote: no traceback, soon, in little memory, nothing else.

One process runs the commands, without a driver. `make test` tries a known case of each kind and a
few others, `make test-all` all known ones, `make hostile` 2,000 others; ten of the known ones go
through the program itself.
"""

from __future__ import annotations

import logging
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from flows.cli.app import main
from tests.hostile.contents import everything
from tests.hostile.spoiling import KNOWN, QUICK, SECONDS, Spoil, spoilers
from tests.hostile.whole_run import NEWEST, whole_run
from tests.marks import SLOW
from train_core.engine.tools.export import export_weights
from train_core.errors import EvertrainError
from train_core.storage.coordination.timing import TIMING
from train_core.storage.run_folder import RunFolder

LIMIT_S = 5.0
LIMIT_BYTES = 2**30
STANDS_STILL_S = 20.0
WAIT_S = TIMING.standstill_s + TIMING.dying_grace_s
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
}
CHANGES: dict[str, Command] = {
    "export": lambda storage: export_weights(
        f"{storage}/{RUN}", NEWEST, f"{storage}/exported.safetensors"
    ),
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
def quiet() -> Iterator[None]:
    """What is left out is warned about: thousands of times here."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def ends_well(act: Command, storage: str, within_s: float = LIMIT_S) -> None:
    """The command ends with a code, or with an error of evertrain's; soon; in little memory."""
    before, begun, begun_cpu_s = _peak_bytes(), time.monotonic(), _cpu_s()
    try:
        code = act(storage)
    except SystemExit as ended:
        code = ended.code
    except (EvertrainError, OSError):
        # What `main` tells in a line.
        code = 2
    assert not isinstance(code, int) or code in (0, 1, 2)
    # Others may share the cores; and whoever waits uses none.
    assert _cpu_s() - begun_cpu_s < LIMIT_S
    assert time.monotonic() - begun < STANDS_STILL_S + within_s
    assert _peak_bytes() - before < LIMIT_BYTES


def _cpu_s() -> float:
    """Of this process, and of those that it has started and that have ended."""
    return sum(os.times()[:4])


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


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
        yield pytest.param(name, marks=SLOW if way in seen or name in SECONDS else ())
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
    ("verify", f"checkpoints/{NEWEST}/model.safetensors is a pipe"),
    ("verify", f"checkpoints/{NEWEST}/manifest.json is a folder"),
    ("runs list", "run.json is deep"),
    ("runs list", "report.json is a pipe"),
    ("ls run", f"checkpoints/{NEWEST}/manifest.json is of format 2"),
    ("show", "live.json is a pipe"),
    ("runs status", "lease 10^18 - 1"),
    ("prune --dry-run", "many orphans"),
    ("ls run", "many metrics"),
    ("verify", f"checkpoints/{NEWEST} is a link"),
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
@pytest.mark.parametrize(("command", "name"), THROUGH_THE_PROGRAM)
def test_the_program_itself_ends_well(
    template: RunFolder, tmp_path: Path, command: str, name: str
) -> None:
    storage, outside = tmp_path / "storage", tmp_path / "outside"
    for copied in (storage / RUN, outside / RUN):
        shutil.copytree(template.url, copied)
    KNOWN[name](RunFolder(str(storage), RUN), outside)
    arguments = ARGUMENTS[command]
    where = [str(storage / RUN)] if command == "ls run" else ["--storage", str(storage)]
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", *arguments, *where],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode in (0, 1, 2)
    assert "Traceback" not in done.stdout + done.stderr
