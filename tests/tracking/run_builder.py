"""Run folders as the training leaves them, built with the real storage functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import safetensors.torch
from torch import nn

from tests.champion.samples import MODEL, decide, decision, promote
from tests.storage.samples import manifest
from train_core.champion.log import ModelLog
from train_core.config import TrainConfig
from train_core.rank.metrics.scores import Scores
from train_core.results import (
    CheckpointSummary,
    EvaluationResult,
    GateResult,
    ModelVersion,
    PredictionsResult,
    Report,
    Tracking,
    TrainResult,
)
from train_core.storage.coordination.lease import Lease
from train_core.storage.predictions import result_of
from train_core.storage.records.journal import Entry, append
from train_core.storage.records.manifest import (
    EvaluationManifest,
    FileEntry,
    PredictionsManifest,
    ReportedFolder,
)
from train_core.storage.records.names import (
    MANIFEST_JSON,
    PREDICTIONS_MANIFEST_JSON,
    REPORT_JSON,
    CheckpointName,
)
from train_core.storage.records.run_record import RunRecord
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import RunWriter, begin_attempt, create_run, next_attempt

BEGIN_S = 1_790_000_000.0


class RunBuilder:
    """Commits checkpoints and results into a new run folder, one attempt after the other."""

    def __init__(self, folder: RunFolder, config: TrainConfig | None = None) -> None:
        self.folder = folder
        self.lease: Lease = begin_attempt(folder)
        self.segments: tuple[FileEntry, ...] = ()
        create_run(
            folder,
            RunRecord(
                name=folder.name,
                created_at=datetime.fromtimestamp(BEGIN_S, UTC).isoformat(),
                config=config or TrainConfig(settings={"width": 4}, monitor="validation/accuracy"),
                pipeline={"top": 2, "experiment": "tests"},
                fingerprint={"torch": "2.13.0"},
                datasets={
                    "train": {"samples": 100, "digest": "a" * 64},
                    "test": {"samples": 10, "digest": None},
                },
            ),
        )

    def new_attempt(self) -> None:
        """What a restart of the driver does."""
        next_attempt(self.folder, self.lease)

    def commit(
        self,
        steps: range,
        *,
        finished: bool = False,
        metrics: dict[str, float | None] | None = None,
        model: nn.Module | None = None,
        time_s: float = BEGIN_S,
        entries: list[Entry] | None = None,
        reported: Mapping[str, bytes] | None = None,
        **facts: Any,
    ) -> CheckpointSummary:
        """Commit a checkpoint after the last of `steps`, whose journal is a new segment.

        `reported` is the folder of a training function, in place of a model. `facts` replace those
        of its manifest.
        """
        entries = entries or [entry(step, time_s) for step in steps]
        store, attempt = self.folder.store, self.lease.attempt
        self.segments = append(store, self.segments, entries, attempt)
        name = CheckpointName(steps[-1], attempt)
        state = {} if model is None else model.state_dict()
        files = {"model.safetensors": safetensors.torch.save(dict(state))}
        if reported is not None:
            files = {f"files/{path}": data for path, data in reported.items()}
        for path, data in files.items():
            store.write(f"checkpoints/{name}/{path}", data)
        metrics = metrics or {"validation/accuracy": 0.5 + steps[-1] / 1000, "train/loss": 0.1}
        fields = {
            "created_at": now(),
            "files": tuple(FileEntry.of(path, data) for path, data in files.items()),
            "reported": None if reported is None else ReportedFolder(name="", world_size=1),
            "epoch": 1,
            "samples_seen": 10 * name.step,
            "metrics": metrics,
            "stopped_by": "epochs" if finished else "",
            "journal": self.segments,
        }
        RunWriter(self.folder, attempt).commit(manifest(name.step, attempt, **fields | facts))
        uri = store.uri(f"checkpoints/{name}")
        return CheckpointSummary(name=str(name), uri=uri, step=name.step, epoch=1, metrics=metrics)

    def change_record(self, **changes: object) -> None:
        """Write run.json anew, with other facts."""
        record = self.folder.record().model_copy(update=changes)
        self.folder.store.write("run.json", record.model_dump_json().encode())

    def evaluate(
        self,
        checkpoint: CheckpointSummary,
        split: str,
        metrics: dict[str, float | None] | None = None,
        *,
        counts: str = "[[3, 0, 0], [1, 2, 0], [0, 0, 4]]",
        scores: Scores | None = None,
    ) -> EvaluationResult:
        """Commit an evaluation, of three classes unless without `counts`."""
        store = self.folder.store.child(f"evaluations/{checkpoint.name}/{split}")
        files: dict[str, bytes] = {}
        if counts:
            matrix = f'{{"labels": ["a", "b", "c"], "counts": {counts}}}'
            files["confusion_matrix.json"] = matrix.encode()
        if scores:
            files["scores.json"] = scores.model_dump_json().encode()
        for name, data in files.items():
            store.write(name, data)
        metrics = metrics or {"accuracy": 0.9, "loss": 0.3}
        made = EvaluationManifest(
            **_of(checkpoint),
            files=tuple(FileEntry.of(name, data) for name, data in files.items()),
            split=split,
            max_batches=0,
            num_samples=10,
            metrics=metrics,
        )
        store.create(MANIFEST_JSON, made.to_json())
        return EvaluationResult(
            checkpoint=checkpoint, split=split, uri=store.url, num_samples=10, metrics=metrics
        )

    def predict(
        self, checkpoint: CheckpointSummary, suffix: str = "", **said: Any
    ) -> PredictionsResult:
        """Commit predictions without files, with `said` of their input."""
        key = f"predictions/{checkpoint.name}{suffix or '-00000000'}"
        store = self.folder.store.child(key)
        made = PredictionsManifest(
            **_of(checkpoint), files=(), step=checkpoint.step, input=said, num_rows=7, rows=()
        )
        store.create(PREDICTIONS_MANIFEST_JSON, made.to_json())
        return result_of(self.folder, key, made, checkpoint)

    def trained(self, best: CheckpointSummary) -> TrainResult:
        """What the training gave, whose only checkpoint is `best`."""
        return _trained(self.folder, best)

    def champion(self, best: CheckpointSummary) -> GateResult:
        """The best checkpoint as a version that the gate made champion."""
        made = decision(self.register(best))
        decide(self.folder, made)
        return promote(self.folder, made)

    def register(self, best: CheckpointSummary) -> ModelVersion:
        """The best checkpoint as a version, as a driver registers it."""
        digest = self.folder.find(best.name).digest
        log = ModelLog(self.folder.storage, MODEL)
        version, number = log.register(self.folder.name, best.name, digest)
        RunWriter(self.folder, self.lease.attempt).note_version(version, number)
        return version

    def report(self, best: CheckpointSummary) -> None:
        """Write the report of a pipeline whose best checkpoint is `best`."""
        evaluations = [self.evaluate(best, split) for split in ("validation", "test")]
        predictions = self.predict(best)
        self.outcome(best, evaluations[1].metrics, evaluations=evaluations, predictions=predictions)

    def outcome(
        self, best: CheckpointSummary, test_metrics: dict[str, float | None], **parts: Any
    ) -> None:
        write_report(self.folder, best, test_metrics, **parts)


def write_report(
    folder: RunFolder,
    best: CheckpointSummary,
    test_metrics: dict[str, float | None],
    *,
    evaluations: Sequence[EvaluationResult] = (),
    predictions: PredictionsResult | None = None,
    gate: GateResult | None = None,
    flow_run: str = "",
) -> None:
    """Write a report with these parts."""
    report = Report(
        run=folder.name,
        uri=folder.store.uri(REPORT_JSON),
        workload="train_core.workloads.digits:Digits",
        train=_trained(folder, best),
        evaluations=list(evaluations),
        best=best,
        test_metrics=test_metrics,
        predictions=predictions,
        gate=gate,
        flow_run=flow_run,
        tracking=Tracking(),
        seconds={},
    )
    folder.store.write(REPORT_JSON, report.model_dump_json().encode())


def _of(checkpoint: CheckpointSummary) -> dict[str, str]:
    """What the manifest of a result says of its checkpoint, and of now."""
    return {"created_at": now(), "checkpoint": checkpoint.name, "checkpoint_digest": "0" * 64}


def _trained(folder: RunFolder, best: CheckpointSummary) -> TrainResult:
    newest = folder.newest()
    assert newest is not None
    return TrainResult(
        run=folder.name,
        attempt=newest.manifest.attempt,
        step=newest.step,
        epoch=newest.manifest.epoch,
        samples_seen=newest.manifest.samples_seen,
        stopped_by="epochs",
        metrics=newest.metrics,
        samples_per_s=1.0,
        seconds=1.0,
        checkpoints=[best],
    )


def entry(step: int, time_s: float = BEGIN_S) -> Entry:
    """What a step's journal says; step 3 was not finite."""
    loss = None if step == 3 else 1 / step
    metrics: dict[str, Any] = {"train/loss": loss, "train/learning_rate": 0.1}
    return Entry(step=step, time=time_s + step, metrics=metrics, rates={"train/samples_per_s": 9.0})


def now() -> str:
    """As manifests say it."""
    return datetime.now(UTC).isoformat()
