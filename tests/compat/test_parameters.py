"""The parameters of a training function, and what is refused of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from evertrain_flows.parameters import RetrainParameters
from tests.storage.samples import record
from train_core import TrainConfig
from train_core.client.runs import epochs_after
from train_core.config import FunctionTraining, WorkloadTraining
from train_core.errors import ConfigError
from train_core.storage.records.manifest import CheckpointManifest, FileEntry, ReportedFolder
from train_core.storage.records.names import check_reported_name, is_of_function
from train_core.storage.run_folder import RunFolder
from train_core.tracking.description.parameters import parameters

FUNCTION = "package.module:function"


def test_a_function_is_listed_under_its_name_and_ranked_by_what_it_reports() -> None:
    config = TrainConfig(train_fn=FUNCTION, train_loop_config='{"lr": 0.1}', monitor="loss")
    assert (config.workload, config.monitor) == (FUNCTION, "loss")
    assert config.train_loop_config == {"lr": 0.1}
    assert TrainConfig(trainer=FUNCTION).monitor == ""
    assert TrainConfig().monitor == ""
    assert isinstance(TrainConfig().trainable, WorkloadTraining)


def test_lists_show_a_function_with_its_module_as_many_have_one_name() -> None:
    assert TrainConfig(train_fn="my.trees:train_func").shown_name == "trees:train_func"
    assert TrainConfig(trainer="nets:trainer").shown_name == "nets:trainer"
    workload = "train_core.workloads.digits:Digits"
    assert TrainConfig(workload=workload).shown_name == "Digits"
    scored = TrainConfig(train_fn=FUNCTION, workload=workload, predictor="my.nets:predictor")
    assert scored.shown_name == "Digits"


def test_a_run_of_a_function_is_not_extended_and_says_what_to_do_instead(folder: RunFolder) -> None:
    with pytest.raises(ConfigError, match=r"decides on its epochs.*`evertrain runs fork run`"):
        epochs_after(folder, "3")


def test_the_flow_and_the_record_give_the_same_configuration() -> None:
    asked = RetrainParameters(train_fn=FUNCTION, num_workers=2, max_failures=3, keep_best=5)
    config = asked.train_config()
    assert isinstance(config.trainable, FunctionTraining)
    read = TrainConfig.model_validate_json(config.recorded().model_dump_json())
    assert read == config
    assert not config.differences(read)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"train_fn": FUNCTION, "trainer": FUNCTION}, "give one"),
        ({"train_fn": "no_module"}, "name it as package.module:Name"),
        ({"trainer": FUNCTION, "train_loop_config": {"lr": 1}}, "train_loop_config needs train_fn"),
        ({"train_loop_config": {"lr": 1}}, "train_loop_config needs train_fn"),
        ({"max_failures": 1}, "max_failures is 1 and needs train_fn or trainer"),
        ({"train_fn": FUNCTION, "max_failures": -2}, "greater than or equal to -1"),
        ({"train_fn": FUNCTION, "epochs": 3}, "epochs would change nothing"),
        ({"train_fn": FUNCTION, "batch_size": 3}, "batch_size would change nothing"),
        ({"train_fn": FUNCTION, "settings": {"a": 1}}, "settings would change nothing"),
        ({"train_fn": FUNCTION, "strategy": "fsdp"}, "strategy would change nothing"),
        ({"train_fn": FUNCTION, "num_workers": (1, 2)}, "min_workers would change nothing"),
        ({"trainer": FUNCTION, "checkpoint_every_s": 3}, "checkpoint_every_s would change nothing"),
        (
            {"train_fn": FUNCTION, "early_stopping_patience": 3},
            "early_stopping_patience would change nothing",
        ),
    ],
)
def test_what_a_function_cannot_do_with_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainConfig(**given)


@pytest.mark.parametrize("given", [{"keep_last": 4}, {"grace_s": 1}, {"cpus_per_worker": 0.5}])
def test_what_evertrain_does_for_a_function_can_be_set(given: dict[str, Any]) -> None:
    assert isinstance(TrainConfig(train_fn=FUNCTION, **given).trainable, FunctionTraining)


def test_a_login_in_its_configuration_is_not_recorded() -> None:
    url = "https://me:secret@example.org/data"
    config = TrainConfig(train_fn=FUNCTION, train_loop_config={"data": url})
    assert "secret" not in config.recorded().model_dump_json()


def test_mlflow_shows_the_parameters_that_have_an_effect() -> None:
    given = {"train_fn": FUNCTION, "train_loop_config": {"lr": 0.5}, "keep_last": 4}
    shown = parameters(record(**given))
    assert shown["train_loop_config.lr"] == "0.5"
    assert shown["keep_last"] == "4"
    assert not {"batch_size", "epochs", "seed", "train_loop_config"} & shown.keys()
    of_workload = parameters(record())
    assert {"batch_size", "seed"} <= of_workload.keys()
    assert not {"train_fn", "max_failures"} & of_workload.keys()


PARTS = st.text(min_size=1, max_size=8)


@given(st.lists(PARTS, min_size=1, max_size=4).map("/".join))
def test_the_path_of_a_file_stays_in_its_folder(path: str) -> None:
    try:
        check_reported_name(path)
    except ValueError:
        return
    parts = path.split("/")
    assert not {"", ".", ".."} & set(parts)
    assert "\\" not in path
    assert path.isprintable()


@pytest.mark.parametrize(
    "name",
    ["", "/etc/passwd", "a/../b", "..", "a//b", "./a", "a/", "a\\b", "a\n", "a\0", "a" * 256],
)
def test_a_path_that_may_lead_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not the path of a file in a folder"):
        check_reported_name(name)


def test_only_a_reported_checkpoint_has_folders_in_it() -> None:
    entry = FileEntry(name="files/deep/er.bin", size_bytes=0, digest="0" * 64)
    facts: dict[str, Any] = {
        "created_at": "",
        "attempt": 1,
        "step": 1,
        "epoch": 0,
        "samples_seen": 0,
        "metrics": {},
        "validated": True,
        "stopped_by": "",
        "files": (entry,),
        "journal": (),
    }
    reported = ReportedFolder(name="", world_size=1)
    made = CheckpointManifest(**facts, reported=reported)
    assert CheckpointManifest.model_validate_json(made.model_dump_json()) == made
    with pytest.raises(ValidationError, match="is not the name of a file in the same folder"):
        CheckpointManifest(**facts)
    with pytest.raises(ValidationError, match="is not the name of a file in the same folder"):
        CheckpointManifest(**(facts | {"journal": (entry,)}), reported=reported)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("checkpoint_000001", True),
        ("own/deep", True),
        ("checkpoints/step-00000001-a0001/files", False),
        ("journal", False),
        ("../other", False),
        (".", False),
    ],
)
def test_only_a_functions_own_folder_is_deleted_when_it_was_moved(key: str, expected: bool) -> None:
    assert is_of_function(key) == expected
