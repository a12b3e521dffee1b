"""Commands that a test runs to their end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
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
