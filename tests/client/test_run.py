"""A run to look at: metrics as a table, checkpoints, the best of them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from tests.client.grown import ACCURACY, commit, create, grow
from train_core import Run, fork_run, open_run, run_status, stop_run, verify_run
from train_core.client.scoring import check_output
from train_core.errors import ConfigError
from train_core.storage.records.journal import Entry
from train_core.storage.run_folder import Commit, RunFolder
from train_core.storage.run_writer import RunWriter, quarantine


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Four checkpoints, of which those of steps 4 and 6 are equally good."""
    return grown(str(tmp_path))


def grown(storage: str) -> Run:
    folder = create(storage)
    for step, accuracy in ((2, 0.5), (4, 0.75), (6, 0.75), (8, None)):
        grow(folder, step, accuracy)
    return Run(folder)


def test_a_run_is_opened_by_its_address_or_by_storage_and_name(storage_url: str) -> None:
    create(storage_url)
    opened = open_run(f"{storage_url}/digits"), open_run(storage_url, "digits")
    assert [one.url for one in opened] == [f"{storage_url}/digits"] * 2
    assert open_run(f"{storage_url}/digits/").name == "digits"
    assert repr(opened[0]) == f"Run('{storage_url}/digits')"


def test_a_path_is_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create(str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path / "runs")
    found = (open_run(tmp_path / "runs" / "digits"), open_run("digits"), open_run(".", "digits"))
    assert {one.url for one in found} == {str(tmp_path / "runs" / "digits")}


@pytest.mark.parametrize("address", [("runs/none",), ("runs", "none")])
def test_a_run_that_is_not_there_is_refused(address: tuple[str, ...]) -> None:
    with pytest.raises(
        ConfigError, match=r"there is no run 'none' in .*runs: give <storage>/<run>"
    ):
        open_run(*address)


@pytest.mark.promise("results-metrics")
def test_metrics_have_a_row_a_step_and_a_column_a_metric(storage_url: str) -> None:
    run = grown(storage_url)
    found = run.metrics
    assert found.index.name == "step"
    assert list(found.index) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert list(found.columns) == ["train/loss", ACCURACY]
    assert set(found.dtypes) == {np.dtype("float64")}
    assert [value.hex() for value in found["train/loss"]] == [(1 / n).hex() for n in found.index]
    # Step 8 was validated, and gave no finite number.
    assert found[ACCURACY].dropna().to_dict() == {2: 0.5, 4: 0.75, 6: 0.75}
    assert list(run.rates.columns) == ["train/samples_per_s"]
    assert run.rates["train/samples_per_s"][4] == 400
    assert list(run.rates.index) == list(found.index)


def test_a_run_without_a_commit_has_no_metrics_and_no_checkpoints(tmp_path: Path) -> None:
    run = Run(create(str(tmp_path)))
    assert run.metrics.empty
    assert run.metrics.index.name == "step"
    assert run.checkpoints == []
    for act in (run.latest, run.best):
        with pytest.raises(ConfigError, match="run 'digits' has no checkpoint yet: see"):
            act()


@pytest.mark.promise("results-metrics")
def test_a_damaged_part_of_the_journal_is_left_out_with_a_warning(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    first, *_ = run.folder.checkpoints()[-1].manifest.journal
    lost = [int(n) for n in first.name.split("-")[1:3]]
    run.folder.store.write(f"journal/{first.name}", b"{}\n")
    assert not set(run.metrics.index) & set(range(lost[0], lost[1] + 1))
    assert f"some metrics are not shown: {run.url}/journal/{first.name}" in caplog.text


class CommittedMeanwhile(RunFolder):
    """Is asked for its newest checkpoint just before another process commits and deletes."""

    old: Commit | None = None

    def newest(self) -> Commit | None:
        found, self.old = self.old, None
        return found or super().newest()


def test_metrics_that_a_commit_has_merged_meanwhile_are_all_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    create(str(tmp_path))
    folder = CommittedMeanwhile(str(tmp_path), "digits")
    grow(folder, 2, 0.5)
    (old,) = folder.checkpoints()
    grow(folder, 4, 0.75)
    for segment in old.manifest.journal:
        folder.store.delete(f"journal/{segment.name}")
    folder.old = old
    assert list(Run(folder).metrics.index) == [1, 2, 3, 4]
    assert not caplog.records


def test_checkpoints_are_listed_oldest_first_with_their_numbers(storage_url: str) -> None:
    run = grown(storage_url)
    quarantine(run.folder, run.checkpoints[1].committed.name, "a flipped bit")
    assert [one.step for one in run.checkpoints] == [2, 6, 8]
    first = run.checkpoints[0]
    assert (first.name, first.epoch) == ("step-00000002-a0001", 1)
    assert first.uri == f"{run.url}/checkpoints/step-00000002-a0001"
    assert first.metrics == {"train/loss": 0.5, ACCURACY: 0.5}
    assert run.latest().step == 8


@pytest.mark.promise("results-best")
def test_the_best_is_by_the_monitored_metric_and_of_equal_ones_the_latest(run: Run) -> None:
    assert run.best().step == 6
    assert run.best(order="min").step == 2
    assert run.best(ACCURACY).step == 6
    assert run.best("train/loss", "min").step == 8


def test_the_order_is_that_of_the_run(tmp_path: Path) -> None:
    folder = create(str(tmp_path), monitor="train/loss", monitor_order="min")
    for step in (2, 4):
        grow(folder, step, 0.5)
    assert Run(folder).best().step == 4


def test_validation_metrics_of_another_step_do_not_count(run: Run) -> None:
    grow(run.folder, 10, 1.0, validated=False)
    assert ACCURACY not in run.latest().metrics
    assert run.best().step == 6


@pytest.mark.promise("results-best")
def test_a_metric_that_cannot_rank_is_refused(run: Run) -> None:
    with pytest.raises(ConfigError, match=r"'loss'.*their metrics are train/loss, validation/acc"):
        run.best("loss", "min")
    with pytest.raises(ConfigError, match=r"'train/loss' is not the one.*give order='max' or"):
        run.best("train/loss")
    with pytest.raises(ConfigError, match="order='best': give 'max' or 'min'"):
        run.best(order="best")  # type: ignore[arg-type]


def test_a_metric_without_one_finite_value_ranks_nothing(tmp_path: Path) -> None:
    folder = create(str(tmp_path))
    grow(folder, 2, None)
    assert math.isnan(Run(folder).metrics[ACCURACY][2])
    with pytest.raises(ConfigError, match=f"no checkpoint .* has a value of metric '{ACCURACY}'"):
        Run(folder).best()


def test_a_checkpoint_is_found_by_its_step(run: Run) -> None:
    assert run.at(4).name == "step-00000004-a0001"
    worst = run.metrics[ACCURACY].idxmin()
    assert run.at(worst).step == 2
    with pytest.raises(ConfigError, match=r"no checkpoint of step 5; it has 2, 4, 6, 8"):
        run.at(5)


def test_of_two_attempts_at_a_step_the_newest_is_found(run: Run) -> None:
    grow(run.folder, 8, 0.25, attempt=2)
    assert run.at(8).name == "step-00000008-a0002"


def test_the_end_of_a_training_function_is_no_checkpoint_and_has_metrics(run: Run) -> None:
    before = run.folder.newest()
    entries = [Entry(step=9, time=9, metrics={"train/loss": 0.0})]
    end = {"files": (), "stopped_by": "function_end", "scheduled": False}
    commit(run.folder, 9, entries, before, {}, **end)
    assert run.latest().step == 8
    assert run.metrics["train/loss"][9] == 0
    with pytest.raises(ConfigError, match="no checkpoint of step 9"):
        run.at(9)


def test_the_functions_that_take_a_run_take_it_as_it_was_opened(run: Run) -> None:
    assert run_status(run) == run_status(run.folder)
    assert [(one.what, one.faults) for one in verify_run(run)] == [
        (what, []) for what in ("run.json", *(one.name for one in run.checkpoints))
    ]
    (only,) = verify_run(run, run.best().name)
    assert only.what == "step-00000006-a0001"
    with pytest.raises(ConfigError, match="no process drives run 'digits'"):
        stop_run(run)
    fork = fork_run(run, at=4)
    assert isinstance(fork, Run)
    assert fork.name == "digits-at-4"
    assert fork.latest().metrics == run.at(4).metrics
    RunWriter(run.folder, 1).delete_run()
    assert list(fork.metrics.index) == [1, 2, 3, 4]


def test_a_folder_that_has_files_is_no_output_of_an_inference(tmp_path: Path) -> None:
    output = tmp_path / "scored"
    output.mkdir()
    (output / "part-00000.parquet").touch()
    with pytest.raises(ConfigError, match=rf"output {output} is not empty \(part-00000\.parquet\)"):
        check_output(str(output))
    check_output(str(tmp_path / "new"))
