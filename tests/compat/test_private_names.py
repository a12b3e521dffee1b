"""Names of Ray that no document promises: one file uses them, and this fails when they change."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path

import pytest
import ray
from ray._private.node import Node
from ray.train import ValidationConfig, ValidationTaskConfig
from ray.train.v2._internal import constants
from ray.train.v2._internal.exceptions import RayTrainError
from ray.train.v2._internal.execution import context, storage, train_fn_utils
from ray.train.v2._internal.execution.callback import ControllerCallback, WorkerGroupCallback
from ray.train.v2._internal.execution.worker_group import (
    DefaultPlacementGroupHandle,
    Worker,
    WorkerGroup,
)
from ray.train.v2.api.config import FailureConfig, RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.train.v2.api.exceptions import TrainingFailedError

from train_core.cluster.runtime import _job_config, _without_dashboard_process
from train_core.functions.runner import FunctionRunner
from train_core.storage.records.names import RAY_SNAPSHOT_JSON
from train_core.timing import FunctionTiming, Timing

TESTED = ("2.60.",)
PRODUCT = Path(__file__).parents[2] / "train_core"


def parameters(function: object) -> list[str]:
    return list(inspect.signature(function).parameters)  # type: ignore[arg-type]


def fields(kind: type) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


def test_this_ray_is_one_that_was_tried() -> None:
    assert ray.__version__.startswith(TESTED), "run tests/compat, and docs/compatibility.md says so"


def test_what_a_training_function_calls_can_be_replaced() -> None:
    assert parameters(train_fn_utils.set_train_fn_utils) == ["train_fn_utils"]
    calls = train_fn_utils.DistributedTrainFnUtils
    assert parameters(calls.report) == [
        "self",
        "metrics",
        "checkpoint",
        "checkpoint_dir_name",
        "checkpoint_upload_mode",
        "delete_local_checkpoint_after_upload",
        "checkpoint_upload_fn",
        "validation",
    ]
    assert parameters(calls.get_checkpoint) == ["self"]
    found = parameters(calls.get_all_reported_checkpoints)
    assert found == ["self", "consistency_mode", "timeout_s"]


def test_a_worker_knows_its_rank_and_rays_storage() -> None:
    assert "storage_context" in fields(context.TrainContext)
    for name in ("get_world_rank", "get_world_size"):
        assert parameters(getattr(context.TrainContext, name)) == ["self"]
    assert isinstance(storage.StorageContext.experiment_fs_path, property)
    assert "storage_filesystem" in inspect.getsource(storage.StorageContext.__init__)


def test_a_trainer_takes_its_configuration_until_it_is_fitted() -> None:
    source = inspect.getsource(DataParallelTrainer)
    for name in (
        *("run_config", "train_run_context", "train_loop_per_worker", "scaling_config"),
        "validation_config",
    ):
        assert f"self.{name} = " in source
    wanted = {"name", "storage_path", "storage_filesystem", "failure_config", "callbacks"}
    assert wanted | {"checkpoint_config"} <= fields(RunConfig)
    assert {"max_failures", "controller_failure_limit", "max_preemption_failures"} <= fields(
        FailureConfig
    )
    resources = ScalingConfig(num_workers=1)._resources_per_worker_not_none
    assert resources == {"CPU": 1}


def test_a_validation_is_configured_as_evertrain_carries_it_out() -> None:
    assert fields(ValidationTaskConfig) == {"fn_kwargs", "timeout_s"}
    assert parameters(ValidationConfig) == ["fn", "task_config", "ray_remote_kwargs"]
    config = ValidationConfig(print)
    assert config.task_config == ValidationTaskConfig(fn_kwargs={}, timeout_s=None)
    assert config.ray_remote_kwargs == {}


def test_the_controller_calls_back_and_its_files_have_their_names() -> None:
    assert parameters(ControllerCallback.after_controller_start) == ["self", "train_run_context"]
    hook = WorkerGroupCallback.before_init_train_context
    assert parameters(hook) == ["self", "workers"]
    assert parameters(Worker.execute_async) == ["self", "fn", "fn_args", "fn_kwargs"]
    # A backend connects the workers in a callback that comes later.
    begin = inspect.getsource(WorkerGroup._start_impl)
    assert begin.index("_init_train_context(") < begin.index(".after_worker_group_start(")
    assert storage.CHECKPOINT_MANAGER_SNAPSHOT_FILENAME == RAY_SNAPSHOT_JSON
    timing = Timing(functions=FunctionTiming(controller_poll_s=0.5))
    environment = FunctionRunner().ray_settings(timing).environment
    assert environment == {constants.HEALTH_CHECK_INTERVAL_S_ENV_VAR: "0.5"}
    assert issubclass(TrainingFailedError, RayTrainError)


def test_one_file_uses_private_names_of_ray_train() -> None:
    users = {
        path.relative_to(PRODUCT).as_posix()
        for path in PRODUCT.rglob("*.py")
        if "ray.train" in (text := path.read_text()) and "._internal" in text
    }
    assert users == {"functions/ray_private_hooks.py"}


def test_a_local_ray_can_be_had_without_the_process_of_its_dashboard() -> None:
    source = inspect.getsource(Node.start_head_processes)
    assert source.count("self.start_api_server(") == 1
    start = Node.start_api_server
    with _without_dashboard_process():
        assert Node.start_api_server is not start
    assert Node.start_api_server is start


def test_workers_are_not_told_to_look_into_the_current_directory() -> None:
    assert "job_config._py_driver_sys_path.extend(" in inspect.getsource(
        ray._private.worker.connect
    )
    config = _job_config()
    config._py_driver_sys_path.extend(["/where/the/driver/is"])
    assert list(config._get_proto_job_config().py_driver_sys_path) == []


def test_workers_can_be_placed_where_tune_has_reserved() -> None:
    assert parameters(WorkerGroup._create_placement_group) == [
        "self",
        "scaling_config",
        "worker_group_context",
    ]
    assert parameters(DefaultPlacementGroupHandle.__init__) == ["self", "pg"]
    assert parameters(DefaultPlacementGroupHandle.shutdown) == ["self"]
    assert parameters(DataParallelTrainer._create_default_callbacks) == ["self"]
    assert "PlacementGroupCleanerCallback()" in inspect.getsource(
        DataParallelTrainer._create_default_callbacks
    )
    # The worker of rank N in the bundle of that number.
    source = inspect.getsource(WorkerGroup._create_workers)
    assert "placement_group_bundle_index=i" in source
    assert constants.ENABLE_PREEMPTION_WATCHER_ENV_VAR == "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"


def test_tune_takes_a_trial_as_it_gives_itself() -> None:
    pytest.importorskip("ray.tune")
    from ray.tune import PlacementGroupFactory, Trainable
    from ray.tune.result import DONE, RESULT_DUPLICATE, SHOULD_CHECKPOINT

    found = (DONE, RESULT_DUPLICATE, SHOULD_CHECKPOINT)
    assert found == ("done", "__duplicate__", "should_checkpoint")
    # The trial's own process reserves nothing, and the first bundle is the first worker's.
    factory = PlacementGroupFactory([{}, {"CPU": 1}, {"CPU": 1}])
    assert factory.head_bundle_is_empty
    assert factory.bundles == [{"CPU": 1}, {"CPU": 1}]
    assert "self.cleanup()" in inspect.getsource(Trainable.stop)
