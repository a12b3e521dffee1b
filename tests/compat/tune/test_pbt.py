"""Population based training: a trial goes on with another one's weights, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from safetensors.numpy import load_file

from train_core.client.checkpoint import Checkpoint
from train_core.storage.addresses import find_checkpoint
from train_core.storage.run_folder import RunFolder
from train_core.tune import TuneCheckpoint

pytest.importorskip("ray.tune")


def files_of(folder: RunFolder, step: int) -> dict[str, dict[str, Any]]:
    (found,) = [one for one in folder.checkpoints() if one.step == step]
    with Checkpoint.in_run(folder, found).as_directory() as path:
        return {name: load_file(path / f"{name}.safetensors") for name in ("model", "optimizer")}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.promise("tune-pbt")
def test_a_trial_goes_on_with_anothers_weights_and_moments_bit_for_bit(
    search: Callable[..., Any], runs: Callable[[], dict[str, RunFolder]]
) -> None:
    from ray import tune
    from ray.tune.schedulers import PopulationBasedTraining

    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        # Who goes on with another one's weights does so at a rate of 0.
        hyperparam_mutations={"settings.learning_rate": [0.0]},
        quantile_fraction=0.25,
        synch=True,
    )
    results = search(
        {"settings.score": tune.grid_search([1, 2, 3, 4]), "settings.learning_rate": 0.01},
        tune_config={"scheduler": scheduler, "metric": "validation/score", "mode": "max"},
        epochs=4,
        cpus_per_worker=0.5,
    )
    assert not results.errors
    assert [one.metrics["training_iteration"] for one in results] == [4] * 4
    # Those that went on with their own weights are one run each: a pause is no end.
    found = runs()
    begun = {name: folder.record() for name, folder in found.items()}
    (copied,) = [name for name, record in begun.items() if record.search.generation == 2]
    assert len(found) == 5
    donor_run = next(
        name for name, one in begun.items() if one.config.settings["score"] == 4 and name != copied
    )
    origin = begun[copied].origin
    donor, commit = find_checkpoint(origin.uri, "")
    assert (donor.name, commit.step) == (donor_run, 8)
    assert origin.digest == commit.digest == begun[copied].search.begins_with
    # Two epochs were behind the weights, and two were left.
    assert begun[copied].config.epochs == 2
    before, after = files_of(donor, 8), files_of(found[copied], 8)
    assert {name: one.tobytes() for name, one in before["model"].items()} == {
        name: one.tobytes() for name, one in after["model"].items()
    }
    steps = {name for name in before["optimizer"] if name.endswith("step")}
    assert steps
    assert {float(before["optimizer"][name]) for name in steps} == {8}
    assert {float(after["optimizer"][name]) for name in steps} == {16}
    # What Tune has names it, and has the weights beside it.
    for result in results:
        named = TuneCheckpoint.of(result.checkpoint)
        assert named.checkpoint().uri.startswith(result.metrics["evertrain/run"])
        with result.checkpoint.as_directory() as folder:
            assert load_file(f"{folder}/model.safetensors")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.promise("tune-pbt")
def test_a_functions_trial_goes_on_with_anothers_folder(
    search: Callable[..., Any], runs: Callable[[], dict[str, RunFolder]]
) -> None:
    from ray import tune
    from ray.tune.schedulers import PopulationBasedTraining

    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        hyperparam_mutations={"train_loop_config.rate": [0.5]},
        quantile_fraction=0.5,
        synch=True,
    )
    results = search(
        {"train_loop_config.score": tune.grid_search([1, 2]), "train_loop_config.rate": 0.1},
        tune_config={"scheduler": scheduler, "metric": "score", "mode": "max"},
        train_fn="tests.compat.functions.searched:counts",
    )
    assert not results.errors
    assert [one.metrics["count"] for one in results] == [4, 4]
    copied = [one for one in runs().values() if one.record().search.generation > 1]
    has_counted = 0
    for folder in copied:
        record = folder.record()
        donor, commit = find_checkpoint(record.origin.uri, "")
        assert record.origin.digest == commit.digest == record.search.begins_with
        first = folder.checkpoints()[0]
        if commit.metrics["count"] == 4:
            # Tune does not know yet that the trial has come to its end: nothing was left.
            assert first.manifest.is_function_end
            continue
        has_counted += 1
        # The folder of the other one, and a rate of its own.
        assert first.metrics["count"] == commit.metrics["count"] + 1
        with Checkpoint.in_run(folder, first).as_directory() as path:
            assert (path / "rate.txt").read_text() == "0.5"
        assert donor.name != folder.name
    assert has_counted
