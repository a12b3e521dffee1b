"""Training functions written for Ray Train, which searches train: no word of evertrain here."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from ray import train


def reports_and_waits(config: dict[str, Any]) -> None:
    """Reports numbers, and goes on after the second when a file is there; fails once."""
    go_on = Path(config["go_on"])
    for number in (1, 2, 3, 4):
        train.report({"number": number})
        while number == 2 and not go_on.exists():
            time.sleep(0.05)
        if number == 3 and not (failed := go_on.with_name("failed")).exists():
            failed.touch()
            raise RuntimeError("once")


def counts(config: dict[str, Any]) -> None:
    """Counts to 4 from where its checkpoint is, and saves the count and its rate each time."""
    found = train.get_checkpoint()
    count = 0
    if found:
        with found.as_directory() as folder:
            count = int(Path(folder, "count.txt").read_text())
    for number in range(count + 1, 5):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "count.txt").write_text(str(number))
            Path(folder, "rate.txt").write_text(str(config["rate"]))
            checkpoint = train.Checkpoint.from_directory(folder)
            train.report({"score": config["score"], "count": number}, checkpoint=checkpoint)
