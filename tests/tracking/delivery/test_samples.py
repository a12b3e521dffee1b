"""What cannot be measured of the machine ends nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.tracking.json_lines_tracker import JsonLinesTracker
from train_core.tracking.delivery.run_sender import SystemSamples
from train_core.tracking.tracker import TrackedRun

OF_SAMPLES = "train_core.tracking.mlflow.system"


def test_a_machine_whose_load_no_library_measures_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = SystemSamples(0.0)
    tracker = JsonLinesTracker(str(tmp_path), "tests", TrackedRun("one", "run", "", ""))
    with monkeypatch.context() as broken:
        # As where a library that it imports is broken.
        broken.setitem(sys.modules, OF_SAMPLES, None)
        samples.measure()
    samples.send(tracker, 0.0)
    assert not list(tmp_path.rglob("metrics.jsonl"))
    samples.measure()
    samples.send(tracker, 0.0)
    (lines,) = tmp_path.rglob("metrics.jsonl")
    assert "system/cpu_utilization_percentage" in lines.read_text()
