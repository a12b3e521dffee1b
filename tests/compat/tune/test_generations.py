"""Which run a trial begins, or goes on with: found from the storage alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.rank import alone
from train_core.errors import CheckpointError, ConfigError
from train_core.rank.checkpoint.init_from import InitialState
from train_core.storage.addresses import find_checkpoint
from train_core.storage.records.run_record import Origin
from train_core.storage.run_folder import RunFolder
from train_core.tune import TuneCheckpoint, trainable
from train_core.tune.generations import Generation, choose, run_name, search_name
from train_core.tune.parameters import of_trial, places_of

ASKED = {"workload": "tests.rank.tiny:Tiny", "batch_size": 32, "eval_batch_size": 16, "epochs": 4}


def begin(storage: Path, trial: str, reference: TuneCheckpoint | None, **own: Any) -> Generation:
    return choose(str(storage), "exp", trial, of_trial(ASKED, own), reference)


def train(storage: Path, generation: Generation, epochs: int) -> RunFolder:
    folder = RunFolder(str(storage), generation.run)
    config = generation.config.model_copy(update={"epochs": epochs})
    alone.create(folder, config, search=generation.search)
    asked = config.model_dump(exclude={"init_from", "init_from_optimizer"}, exclude_unset=True)
    alone.run(folder, **asked)
    return folder


def named(folder: RunFolder, trial: str) -> TuneCheckpoint:
    newest = folder.newest()
    assert newest is not None
    return TuneCheckpoint(
        run=folder.url,
        trial=trial,
        step=newest.step,
        name=str(newest.name),
        digest=newest.digest,
        epochs=newest.manifest.epoch,
        steps=newest.step,
    )


@pytest.mark.promise("tune-pbt")
def test_who_gets_anothers_checkpoint_begins_a_run_with_its_weights_and_moments(
    tmp_path: Path,
) -> None:
    donor = train(tmp_path, begin(tmp_path, "ab12c_00000", None), 2)
    first = begin(tmp_path, "ab12c_00001", None)
    train(tmp_path, first, 1)
    reference = named(donor, "ab12c_00000")
    # Also with the parameters that it has: its own run has other weights.
    same = begin(tmp_path, "ab12c_00001", reference)
    assert (same.run, same.search.begins_with) == ("exp-ab12c-00001-g2", reference.digest)
    second = begin(tmp_path, "ab12c_00001", reference, **{"settings.learning_rate": 0.5})
    assert (first.run, second.run) == ("exp-ab12c-00001", "exp-ab12c-00001-g2")
    assert second.search.begins_with == reference.digest
    # Two epochs are left of four, and the rate is the trial's.
    assert (second.config.epochs, second.config.init_from_optimizer) == (2, True)
    assert second.config.settings == {"learning_rate": 0.5}
    found, commit = find_checkpoint(second.config.init_from, "")
    assert (found.url, commit.digest) == (donor.url, reference.digest)
    origin = Origin(uri=second.config.init_from, digest=commit.digest)
    state = InitialState.read(origin, second.config)
    assert state.optimizer is not None
    assert {float(one["step"]) for one in state.optimizer["state"].values()} == {commit.step}
    # Whoever tries it again, in another process, finds it.
    alone.create(RunFolder(str(tmp_path), second.run), second.config, search=second.search)
    again = begin(tmp_path, "ab12c_00001", reference, **{"settings.learning_rate": 0.5})
    assert again == second
    # Its own next checkpoint is no other trial's.
    own = reference.model_copy(update={"run": RunFolder(str(tmp_path), second.run).url, "step": 5})
    more = begin(tmp_path, "ab12c_00001", own, **{"settings.learning_rate": 0.5})
    assert (more.run, more.after) == (second.run, 5)


@pytest.mark.promise("tune-trials")
def test_a_trial_that_is_tried_again_goes_on_with_its_run(tmp_path: Path) -> None:
    first = begin(tmp_path, "ab12c_00000", None)
    folder = train(tmp_path, first, 2)
    assert begin(tmp_path, "ab12c_00000", None) == first
    paused = named(folder, "ab12c_00000").model_copy(update={"step": 5})
    assert (begin(tmp_path, "ab12c_00000", paused).run, paused.step) == (first.run, 5)
    assert begin(tmp_path, "ab12c_00000", paused).after == 5


@pytest.mark.promise("tune-restored")
def test_the_order_of_parameters_and_what_is_a_default_tell_no_trials_apart(tmp_path: Path) -> None:
    first = begin(tmp_path, "ab12c_00000", None, settings={"averages": True, "dropout": 0.5})
    alone.create(RunFolder(str(tmp_path), first.run), first.config, search=first.search)
    again = {"seed": 0, "settings": {"dropout": 0.5, "averages": True}}
    assert begin(tmp_path, "ab12c_00000", None, **again).run == first.run
    other = begin(tmp_path, "ab12c_00000", None, **{**again, "seed": 1})
    assert other.run == f"{first.run}-g2"


def test_a_checkpoint_that_is_gone_or_another_is_refused(tmp_path: Path) -> None:
    folder = train(tmp_path, begin(tmp_path, "ab12c_00000", None), 1)
    reference = named(folder, "ab12c_00000")
    other = reference.model_copy(update={"digest": "0" * 64})
    with pytest.raises(CheckpointError, match="is not what was reported"):
        begin(tmp_path, "ab12c_00001", other)
    gone = reference.model_copy(update={"name": "step-00000099-a0001"})
    with pytest.raises(ConfigError, match="is deleted: a trial that is paused or copied needs it"):
        begin(tmp_path, "ab12c_00001", gone)


@pytest.mark.promise("tune-pbt")
def test_a_trial_is_not_copied_before_it_has_a_checkpoint(tmp_path: Path) -> None:
    folder = train(tmp_path, begin(tmp_path, "ab12c_00000", None), 1)
    whole = named(folder, "ab12c_00000")
    reported = TuneCheckpoint(run=folder.url, trial="ab12c_00000", step=9)
    with pytest.raises(ConfigError, match="trial ab12c_00000, which has no checkpoint yet"):
        begin(tmp_path, "ab12c_00001", reported)
    # A report without one does not take away the one before it.
    later = reported.with_checkpoint_of(whole)
    assert later == whole.model_copy(update={"step": 9})
    assert begin(tmp_path, "ab12c_00001", later).search.begins_with == whole.digest
    # Its own runs are found from such a report, too; and another run's are no part of this one.
    assert begin(tmp_path, "ab12c_00000", reported).after == 9
    # With other parameters it would begin from nothing.
    with pytest.raises(ConfigError, match="trial ab12c_00000, which has no checkpoint yet"):
        begin(tmp_path, "ab12c_00000", reported, seed=1)
    elsewhere = reported.model_copy(update={"run": f"{folder.url}-g2"})
    assert elsewhere.with_checkpoint_of(whole) == elsewhere


def test_weights_that_all_trials_begin_with_are_no_other_trials(tmp_path: Path) -> None:
    asked = {"init_from": "https://user:secret@host/base"}
    first = begin(tmp_path, "ab12c_00000", None, **asked)
    assert not first.config.init_from_optimizer
    recorded = first.config.model_copy(update={"init_from": "https://host/base"})
    alone.create(RunFolder(str(tmp_path), first.run), recorded, search=first.search)
    assert begin(tmp_path, "ab12c_00000", None, **asked) == first


def test_two_searches_of_one_name_have_other_runs() -> None:
    assert search_name("lr", "ab12c_00003") == "lr-ab12c"
    assert run_name("lr", "ab12c_00003", 1) == "lr-ab12c-00003"
    assert run_name("lr", "99fff_00003", 2) == "lr-99fff-00003-g2"
    # Other search algorithms give each trial an id of its own.
    assert run_name("my search/1", "5f0e99ab", 1) == "my-search-1-5f0e99ab"


@pytest.mark.promise("tune-trials")
@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"epochs": "many"}, "epochs: Input should be a valid integer.*, got 'many'"),
        ({"epocs": 3}, "epocs: Extra inputs are not permitted, got 3"),
        ({"ray_address": "auto"}, "ray_address: a trial trains on the Ray of its search"),
        ({"num_workers": 2, "min_workers": 1}, "min_workers: a trial has as many workers"),
        ({"train_fn": "functions:train"}, "workload 'my:Mine' and training function"),
        ({"train_fn": print}, "train_fn: Input should be a valid string, got <built-in"),
    ],
)
def test_what_is_wrong_for_all_trials_is_refused_before_the_search(
    asked: dict[str, Any], told: str
) -> None:
    workload = "" if callable(asked.get("train_fn")) else "my:Mine"
    with pytest.raises(ConfigError, match=told):
        trainable(workload, **asked)


def test_what_a_trial_adds_may_be_needed() -> None:
    assert trainable(train_loop_config={"lr": 0.1}, trainer="functions:trainer").asked
    assert trainable("my:Mine", num_workers=2, num_shards=3).asked


@pytest.mark.promise("tune-trials")
def test_a_trials_own_parameters_take_the_place_of_the_searchs() -> None:
    import numpy as np

    asked = {**ASKED, "settings": {"dropout": 0.5, "averages": False}}
    drawn = {"settings.dropout": np.float64(0.25), "settings": {"momentum": 0.9}, "num_workers": 2}
    config = of_trial(asked, drawn)
    assert config.settings == {"dropout": 0.25, "averages": False, "momentum": 0.9}
    json.dumps(config.model_dump(mode="json"))
    loop = {"lr": 1.0, "optim": {"name": "sgd", "decay": {"rate": 0.1, "steps": 3}}}
    space = {
        "train_loop_config.optim.decay.rate": 0.5,
        "train_loop_config": {"optim": {"name": "lion"}},
    }
    function = {"train_fn": "tests.compat.functions.searched:reports_and_waits"}
    found = of_trial({**function, "train_loop_config": loop}, space).train_loop_config
    assert found == {"lr": 1.0, "optim": {"name": "lion", "decay": {"rate": 0.5, "steps": 3}}}
    # Nothing for its own process, and a place for each worker.
    assert places_of(config) == [{}, {"CPU": 1}, {"CPU": 1}]
    assert (config.keep_every_steps, of_trial({**ASKED, "keep_last": 3}, {}).keep_every_steps) == (
        1,
        0,
    )
    # None is given by default, but to a trainer, which says itself how many its workers have.
    assert config.gpus_per_worker == 0
    assert of_trial({"trainer": "some.module:factory"}, {}).gpus_per_worker is None
    for wrong in ({"ray_address": "http://head:8265"}, {"num_workers": (1, 2)}, {"epoch": 3}):
        with pytest.raises(ConfigError, match=next(iter(wrong))[:3]):
            of_trial(ASKED, wrong)
    for damaged in ("{bad", [1]):
        with pytest.raises(ConfigError, match="settings"):
            of_trial({**ASKED, "settings": damaged}, {"settings.dropout": 0.1})
