"""What is started by name: a dependency that no import shows.

Programs are started as `python -m NAME`. Functions are named `module:function`, for a worker of the
pool or for an isolated call. `train_core/functions`, the room of Ray Train, is used by such names
only, so nothing else depends on Ray Train.
"""

from __future__ import annotations

DRIVER = "train_core.driver.process_entry"
"""The driver process, which runs the stages of one run: started by `client.carriers.pipe`."""
JOB = "train_core.driver.job.entry"
"""The driver as a job of a Ray cluster: submitted by `client.carriers.job`."""
ISOLATED_CALL = "train_core.tools.isolated_call"
"""One function in a process of its own: started by `client.isolated`."""
STANDALONE_RANK = "train_core.tools.standalone"
"""One rank without Ray, under torchrun: started by `client.verify_resume`."""
KILLED_IN_PLACE_RANK = "train_core.tools.killed_in_place"
"""One rank without Ray, of a training that goes on in place: started by its `train_in_place`."""
PROGRAMS = (DRIVER, JOB, ISOLATED_CALL, STANDALONE_RANK, KILLED_IN_PLACE_RANK)

TRAIN_RANK = "train_core.rank.training:train"
"""One rank of a training."""
PREPARE_SPARE = "train_core.rank.training:prepare"
"""What a spare does while it waits for a rank's place."""
MEASURE_SHARD = "train_core.scoring.evaluate:measure_one_shard"
"""One shard of an evaluation."""
SCORE_PART = "train_core.scoring.predict:score_one_part"
"""One part of a batch inference."""
SCORE_ROWS = "train_core.scoring.gate_rows:score_rows"
"""One shard of the rows on which a gate compares two models."""
MEASURE_COST = "train_core.scoring.gate_rows:measure_cost"
"""The latency and the size of one model."""
WORKER_FUNCTIONS = (TRAIN_RANK, PREPARE_SPARE, MEASURE_SHARD, SCORE_PART, SCORE_ROWS, MEASURE_COST)
"""What a worker of the pool runs."""

DELETE_TRACKING = "train_core.tracking.mlflow.existing_runs:delete_runs"
UNREGISTERED_CHECKPOINTS = "train_core.tracking.mlflow.models.lookups:unregistered_checkpoints"
FORGET_MODELS = "train_core.tracking.afterwards:forget_deleted"
MIRROR_RUN = "train_core.tracking.delivery.catch_up:catch_up_at"
MIRROR_PREDICTIONS = "train_core.tracking.afterwards:show_batch_inference"
SHOW_GATE = "train_core.tracking.afterwards:show_gate_at"
SHOW_ALIASES = "train_core.tracking.mlflow.models.registered:show_aliases_of"
DASHBOARD_OF = "train_core.cluster.jobs:dashboard_of"
UPLOAD_CODE = "train_core.cluster.jobs:upload_code"
ISOLATED_FUNCTIONS = (
    DELETE_TRACKING,
    UNREGISTERED_CHECKPOINTS,
    FORGET_MODELS,
    MIRROR_RUN,
    MIRROR_PREDICTIONS,
    SHOW_GATE,
    SHOW_ALIASES,
    DASHBOARD_OF,
    UPLOAD_CODE,
)
"""What `client.isolated` calls: each needs MLflow or Ray."""

RAY_CHECKPOINT = "train_core.functions.ray_checkpoints:ray_checkpoint"
ADDRESS_OF_RAY_CHECKPOINT = "train_core.functions.ray_checkpoints:address_of"
"""A checkpoint as Ray Train's, and back: called by `client.checkpoint`."""
FUNCTIONS = (
    *WORKER_FUNCTIONS,
    *ISOLATED_FUNCTIONS,
    RAY_CHECKPOINT,
    ADDRESS_OF_RAY_CHECKPOINT,
)

FUNCTION_RUNNER = "train_core.functions.runner:FunctionRunner"
"""Checks and trains a training function: made by `driver.runner`, which has its base."""
