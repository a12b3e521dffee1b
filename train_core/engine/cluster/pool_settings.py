"""What the pool of workers wants of Ray. Imports no Ray, which reads it as it is imported."""

from __future__ import annotations

from train_core.engine.cluster.runtime import RaySettings

POOL_SETTINGS = RaySettings(
    environment={
        # Ray's default gives way to every other process, also to those that only watch the
        # training.
        "RAY_worker_niceness": "0",
        # The pool itself tells its workers which GPUs they see.
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    },
    # Nothing is put there but a task's results; its memory is reserved at the start, 1 s for 7 GB.
    object_store_bytes=256 * 2**20,
)
