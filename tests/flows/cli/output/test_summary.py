"""What a command that runs a pipeline says at its beginning and at its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from evertrain_flows.cli.output.summary import print_summary
from evertrain_flows.cli.output.terminal import Screen
from evertrain_flows.cli.run_pipeline import first_line
from tests.client.grown import create, grow
from tests.flows.test_results import REPORT, checkpoint, evaluated
from train_core.policy.stop_reasons import StopReason


@pytest.mark.parametrize(
    ("monitor", "order", "value", "told"),
    [
        ("validation/accuracy", "max", 0.4, ""),
        ("loss", "min", 0.25, "chosen by    the lowest loss that the training reported\n"),
        ("reward", "max", 7.0, "chosen by    the highest reward that the training reported\n"),
        ("never reported", "min", None, ""),
    ],
)
def test_a_metric_that_is_not_in_the_table_and_chose_the_best_is_named(
    monitor: str,
    order: str,
    value: float | None,
    told: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trained = REPORT.train.model_copy(update={"monitor": monitor, "monitor_order": order})
    evaluations = [evaluated(10, 0.5), evaluated(20, 0.4)]
    best = checkpoint(20).model_copy(update={"metrics": {monitor: value}})
    report = REPORT.model_copy(update={"train": trained, "evaluations": evaluations, "best": best})
    print_summary(report, "report.json", Screen())
    shown = capsys.readouterr().out
    assert told in shown
    assert ("chosen by" in shown) == bool(told)


def test_a_function_without_a_checkpoint_shows_what_it_reported_last_and_returned(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ended = {"metrics": {"loss": 0.25, "epoch": 3.0}, "return_value": {"rows": 100}}
    trained = REPORT.train.model_copy(update={**ended, "checkpoints": []})
    none = {"evaluations": [], "best": None, "test_metrics": {}, "predictions": None}
    print_summary(REPORT.model_copy(update={**none, "train": trained}), "report.json", Screen())
    shown = capsys.readouterr().out
    assert "best         none, as no checkpoint was reported\n" in shown
    assert "last report  loss 0.2500, epoch 3.0000\n" in shown
    assert 'returned     {"rows": 100}\n' in shown


def test_a_long_return_value_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    trained = REPORT.train.model_copy(update={"return_value": "a" * 1000})
    print_summary(REPORT.model_copy(update={"train": trained}), "report.json", Screen())
    (shown,) = [one for one in capsys.readouterr().out.splitlines() if one.startswith("returned")]
    assert shown.endswith("a…")
    assert len(shown) < 250


def test_the_first_line_says_from_which_step_the_run_continues(tmp_path: Path) -> None:
    folder = create(str(tmp_path), "run", max_steps=4)
    assert first_line(folder) == "continuing run run"
    grow(folder, 2, 0.5)
    assert first_line(folder) == "continuing run run after step 2"
    grow(folder, 4, 0.6, stopped_by=StopReason.MAX_STEPS)
    assert first_line(folder) == (
        "continuing run run, whose training has ended: only the stages after it are run"
    )
