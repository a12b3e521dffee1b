"""The batch inference flow: score new data with a checkpoint of an existing run."""

from __future__ import annotations

from typing import Any

from prefect import flow, get_run_logger

from flows.parameters import absolute, default_storage
from tasks.infer import infer
from tasks.prepare import prepare
from tasks.session import open_session
from train_core.driver import DriverRequest
from train_core.errors import ConfigError
from train_core.results import CheckpointSummary, PredictionsResult
from train_core.storage.names import CheckpointName
from train_core.storage.run_folder import RunFolder

BEST = "best"


@flow(
    name="batch-inference",
    flow_run_name="{run} {checkpoint}",
    persist_result=True,
    result_serializer="json",
)
def batch_inference(
    run: str,
    checkpoint: str = BEST,
    infer_input: str = "test",
    storage: str = "",
    ray_address: str = "",
    runtime_env: dict[str, Any] | None = None,
) -> PredictionsResult:
    """Score `infer_input` with a checkpoint of `run`.

    Args:
        run: The run's name.
        checkpoint: A checkpoint's name, or `best`: the one that the run's report names.
        infer_input: A split's name, or the path or URL of Parquet, a folder of images or IDX.
        storage: The folder of the runs; empty: EVERTRAIN_STORAGE, or .evertrain/runs.
        ray_address: `local` or a running cluster; empty: where the run was trained.
        runtime_env: Ray's, for the workers; None: that of the training, without its `env_vars`.
    """
    folder = RunFolder(absolute(storage) if storage else default_storage(), run)
    summary = find_checkpoint(folder, checkpoint)
    config = folder.asked().config
    if ray_address:
        config = config.model_copy(update={"ray_address": ray_address})
    if runtime_env is not None:
        config = config.model_copy(update={"runtime_env": runtime_env})
    # No tracking URI: this is no part of the training, whose MLflow run has ended.
    request = DriverRequest(
        storage=folder.url.removesuffix(f"/{run}"),
        run=run,
        config=config,
        pipeline={"infer_input": infer_input},
        scores_only=True,
    )
    with open_session(request) as session:
        session.log_to(get_run_logger())
        prepare(request)
        return infer(request, summary, infer_input)


def find_checkpoint(folder: RunFolder, name: str) -> CheckpointSummary:
    """The checkpoint called `name`, or the best one. Raises ConfigError if it is not there."""
    if not folder.exists():
        raise ConfigError(f"there is no run {folder.name!r} in {folder.url}")
    if name == BEST:
        best = folder.reported(str, "best", "name")
        if best is None:
            raise ConfigError(
                f"run {folder.name!r} has no report.json, so no best checkpoint yet: "
                "let it finish, or name a checkpoint"
            )
        name = best
    found = {str(one.name): one for one in folder.checkpoints()}
    if CheckpointName.parse(name) is None or name not in found:
        raise ConfigError(
            f"run {folder.name!r} has no checkpoint {name!r}; it has {', '.join(found) or 'none'}"
        )
    return folder.summary(found[name])
