"""What only the driver process can find out: refused in one line, before anything is written.

More of it, with the driver in the process of the test, is in test_continued.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.flows.conftest import RETRAIN, Evertrain
from tests.marks import slow
from tests.workloads.idx_files import format_idx
from train_core.storage.objects.store import Store

# The first one that needs the undisturbed pipeline waits for it.
pytestmark = pytest.mark.timeout(300)

IMAGES = "t10k-images-idx3-ubyte"


@pytest.mark.promise("one-line-refusal", "settings")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        slow(["--settings", '{"depth": 3}'], "depth: Extra inputs are not permitted, got 3"),
        slow(["--storage", "/proc/none"], "/proc/none"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_run(
    arguments: list[str], message: str, evertrain: Evertrain, home: Path
) -> None:
    done = evertrain("retrain", "--run", "refused", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("evertrain: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (home / ".evertrain/runs/refused").exists()


def missing(file: Path) -> None:
    file.unlink()


def truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9])


def empty(file: Path) -> None:
    file.write_bytes(format_idx(np.zeros((0, 28, 28), np.uint8)))
    labels = file.with_name("t10k-labels-idx1-ubyte")
    labels.write_bytes(format_idx(np.zeros(0, np.uint8)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (missing, f"{IMAGES} is missing"),
        (truncated, f"{IMAGES} is truncated: expected 31376 bytes for 40 x 28 x 28 values, found"),
        (empty, "has no t10k images: expected at least one"),
    ],
)
def test_bad_data_is_named(
    damage: Callable[[Path], None], message: str, evertrain: Evertrain, home: Path, tmp_path: Path
) -> None:
    store = Store(str(tmp_path))
    for part in ("train", "t10k"):
        store.write(f"{part}-images-idx3-ubyte", format_idx(np.zeros((40, 28, 28), np.uint8)))
        store.write(f"{part}-labels-idx1-ubyte", format_idx(np.zeros(40, np.uint8)))
    damage(tmp_path / IMAGES)
    workload = "train_core.workloads.mnist:MnistResNet18"
    settings = json.dumps({"data": str(tmp_path), "validation_samples": 10})
    done = evertrain("retrain", "--run", "refused", "--workload", workload, "--settings", settings)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (home / ".evertrain/runs/refused").exists()


@pytest.mark.slow
def test_what_may_not_change_is_shown_with_both_values(
    undisturbed: str, evertrain: Evertrain
) -> None:
    changed = ("--run", "undisturbed", "--num-workers", "1", "--batch-size", "32", "--seed", "7")
    done = evertrain(*RETRAIN, *changed)
    assert done.returncode == 2
    assert "batch_size" in done.stderr
    assert "64" in done.stderr
    assert "32" in done.stderr
    assert "seed" in done.stderr
    assert done.stderr.count("\n") == 1
