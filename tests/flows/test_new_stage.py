"""A new stage takes three changes beside its own code."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {"flows": "evertrain_flows", "tasks": "evertrain_tasks", "train_core": "train_core"}

DECLARED = '''
class CountArguments(Result):
    """What is counted."""

    checkpoints: list[CheckpointSummary]


COUNT = Stage("count", CountArguments, Answer[int], "count {request.run}")
"""Count checkpoints."""
'''
IN_ITS_PLACE = ("(TRAIN, EVALUATE,", "(TRAIN, COUNT, EVALUATE,")
BESIDE_EVALUATE = """
        from train_core.stages import COUNT
        self.handle(COUNT, lambda asked: len(asked.checkpoints))
"""
AFTER_TRAIN = """
    from train_core.stages import COUNT
    counted = COUNT.arguments(checkpoints=trained.checkpoints)
    session.seconds["counted"] = start(task_of(COUNT), request, counted)()
"""


def changed(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert text.count(before) == 1
    file.write_text(text.replace(before, after))


def added(file: Path, after: str, lines: str) -> None:
    changed(file, after, after + lines)


@pytest.mark.slow
def test_a_stage_is_added_by_its_declaration_who_carries_it_out_and_its_place_in_the_flow(
    tmp_path: Path,
) -> None:
    product = tmp_path / "product"
    for folder, package in PACKAGES.items():
        shutil.copytree(ROOT / folder, product / package)
    stages = product / "train_core" / "stages.py"
    changed(stages, "\nSTAGES: tuple", f"{DECLARED}\nSTAGES: tuple")
    changed(stages, *IN_ITS_PLACE)
    driver = product / "train_core" / "driver" / "run_stages.py"
    added(driver, "        self.handle(EVALUATE, self.evaluate)\n", BESIDE_EVALUATE)
    flow = product / "evertrain_flows" / "retrain.py"
    added(flow, "    trained = start(task_of(TRAIN), request, TRAIN.arguments())()\n", AFTER_TRAIN)
    command = [sys.executable, "-m", "evertrain_flows.cli", "retrain", "--run", "counted"]
    command += ["--epochs", "2", "--num-workers", "1", "--storage", str(tmp_path / "runs")]
    environment = os.environ | {"PYTHONPATH": str(product), "HOME": str(tmp_path)}
    subprocess.run(command, check=True, cwd=tmp_path, env=environment)
    report = json.loads((tmp_path / "runs" / "counted" / "report.json").read_text())
    assert report["seconds"]["counted"] == len(report["train"]["checkpoints"])
    # The session counts its time, as of every stage.
    assert report["seconds"]["count"] > 0
