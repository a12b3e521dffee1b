"""What only the driver can find out: told in one line, before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.flows.conftest import Evertrain


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--workload", "nowhere:Model"], "workload 'nowhere:Model' cannot be imported"),
        (["--settings", '{"depth": 3}'], "depth: Extra inputs are not permitted, got 3"),
        (["--monitor", "validation/beauty"], "'validation/beauty' is not measured"),
        (["--num-workers", "64"], "64 workers"),
        (["--infer-input", "/nowhere.parquet"], "/nowhere.parquet"),
        (["--storage", "/proc/none"], "/proc/none"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_run(
    arguments: list[str], told: str, evertrain: Evertrain, home: Path
) -> None:
    done = evertrain("retrain", "--run", "refused", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("evertrain: ")
    assert told in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (home / ".evertrain/runs/refused").exists()
