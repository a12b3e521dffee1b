"""Commands that a test runs to their end, and programs that it talks to."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

EVERTRAIN = (sys.executable, "-m", "evertrain_flows.cli")
"""The command line of this environment."""


def run(command: Sequence[str | Path], **more: Any) -> subprocess.CompletedProcess[str]:
    """How the command ended, and what it said; `more` is what `subprocess.run` takes."""
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)


def succeed(command: Sequence[str | Path], **more: Any) -> subprocess.CompletedProcess[str]:
    """The same. The command must end with 0."""
    done = run(command, **more)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done


def begin(
    command: Sequence[str | Path], log: Path, mode: str = "ab", **more: Any
) -> subprocess.Popen[bytes]:
    """The command's process; the log has what it says. `more` is what `Popen` takes."""
    with log.open(mode) as output:
        return subprocess.Popen(command, stdout=output, stderr=output, **more)


def end(
    process: subprocess.Popen[bytes], number: signal.Signals = signal.SIGTERM, within_s: float = 30
) -> None:
    """Have it end by a signal; what does not end is killed."""
    process.send_signal(number)
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def talking(
    code: str, *arguments: str | Path, cwd: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A program in Python that says lines, and waits for one; it is killed at the end."""
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=cwd,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def said_by(process: subprocess.Popen[str]) -> str:
    """The next line that it says."""
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def at_once(code: str, *arguments: Sequence[str], cwd: Path | None = None) -> list[str]:
    """What programs say that go on together, when each of them has said `ready`."""
    with ExitStack() as stack:
        processes = [stack.enter_context(talking(code, *one, cwd=cwd)) for one in arguments]
        assert {said_by(one) for one in processes} == {"ready"}
        for one in processes:
            assert one.stdin is not None
            one.stdin.write("\n")
            one.stdin.flush()
        return [one.communicate(timeout=60)[0].strip() for one in processes]
