"""Deleting the checkpoints that no rule keeps."""

from __future__ import annotations

import logging

from train_core.config import TrainConfig
from train_core.policy.retention import checkpoints_to_delete
from train_core.policy.selection import Candidate
from train_core.storage.names import CheckpointName
from train_core.storage.run_folder import RunFolder

_log = logging.getLogger(__name__)


def delete_superseded(folder: RunFolder, config: TrainConfig, attempt: int) -> None:
    """Apply the retention rules; a failure leaves a checkpoint more, never one less.

    A newer commit stands, so nobody resumes from what is deleted here; and nothing depends on
    where this attempt began, or an interrupted run would keep other checkpoints. The best one of
    a run that has ended and was extended stays: its report names it.
    """
    try:
        report = folder.report()
        candidates = [
            Candidate(
                str(c.name), c.manifest.step, c.manifest.metrics if c.manifest.validated else {}
            )
            for c in folder.checkpoints()
        ]
        for candidate in checkpoints_to_delete(
            candidates,
            keep_last=config.keep_last,
            keep_best=config.keep_best,
            metric=config.monitor,
            order=config.monitor_order,
            protected=[report["best"]["name"]] if report else [],
        ):
            name = CheckpointName.parse(candidate.name)
            assert name is not None
            folder.delete_checkpoint(name, attempt=attempt)
    except OSError as error:
        _log.warning("a superseded checkpoint could not be deleted: %s", error)
