"""What a validation function has measured: an evaluation of the checkpoint, in the run folder."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from train_core.engine.ray_train.plain import numbers_and_texts
from train_core.policy.metric_names import VALIDATION
from train_core.storage.coordination import pins
from train_core.storage.records.journal import finite
from train_core.storage.records.manifest import EvaluationManifest
from train_core.storage.records.names import EVALUATIONS
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import ResultWriter


def record_validation(folder: RunFolder, name: str, metrics: Mapping[str, Any]) -> None:
    """Commit the metrics as an evaluation of the checkpoint of that name.

    Any process may do so. Raises FileNotFoundError if the checkpoint was deleted.
    """
    checkpoint = folder.find(name)
    with pins.pinned(folder.store, [checkpoint.name], "evaluate"):
        manifest = EvaluationManifest(
            created_at=datetime.now(UTC).isoformat(),
            checkpoint=name,
            checkpoint_digest=checkpoint.digest,
            split=VALIDATION,
            num_samples=0,
            max_batches=0,
            metrics=finite(numbers_and_texts(metrics)[0]),
            files=(),
        )
        key = f"{EVALUATIONS}/{name}/{VALIDATION}-{uuid.uuid4().hex[:8]}"
        ResultWriter(folder).commit_result(key, manifest)
