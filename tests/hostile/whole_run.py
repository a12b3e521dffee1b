"""A run folder with one of everything that is read again, made without a training."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import RootModel

from tests.client.grown import ACCURACY, create, grow
from train_core.storage.objects.digest_algorithm import digest_of
from train_core.storage.records.amendments import Amendment
from train_core.storage.records.documents import MAX_DOCUMENT_BYTES, with_checksum
from train_core.storage.records.manifest import EvaluationManifest, FileEntry, PredictionsManifest
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import ResultWriter, RunWriter, begin_attempt

STEPS = (2, 4, 6)
BEST = "step-00000004-a0001"
NEWEST = "step-00000006-a0001"
EVALUATION = f"evaluations/{BEST}/test-0123abcd"
PREDICTIONS = f"predictions/{BEST}-0123abcd"
SEGMENT = "steps-00000001-00000006-a0001.jsonl"
"""The newest checkpoint's only segment of the journal, into which the others' were merged."""
_AT = "2026-01-01T00:00:00+00:00"


class Anything(RootModel[dict[str, Any]]):
    """What an enemy writes, who knows how manifests end with a checksum."""


def whole_run(storage: str, name: str = "run") -> RunFolder:
    """A finished run of three checkpoints, with an evaluation, predictions and a report."""
    folder = create(storage, name, max_steps=STEPS[-1], epochs=99)
    held = begin_attempt(folder)
    writer = RunWriter(folder, held.attempt)
    asked = folder.newest_request()
    more = asked.config.model_copy(update={"keep_last": 9})
    writer.amend(Amendment(config=more, pipeline=asked.pipeline))
    for step in STEPS:
        ends = {"stopped_by": "max_steps"} if step == STEPS[-1] else {}
        grow(folder, step, 0.9 if step == 4 else 0.5, **ends)
    held.release()
    _write_results(folder)
    return folder


def _write_results(folder: RunFolder) -> None:
    best = folder.find(BEST)
    writer = ResultWriter(folder)
    of = {"created_at": _AT, "checkpoint": BEST, "checkpoint_digest": best.digest}
    metrics = {"accuracy": 0.9}
    measured = writer.write_result_file(
        f"{EVALUATION}/metrics.json", (json.dumps(metrics) + "\n").encode()
    )
    writer.commit_result(
        EVALUATION,
        EvaluationManifest(
            **of, files=(measured,), split="test", num_samples=3, max_batches=0, metrics=metrics
        ),
    )
    part = writer.write_result_file(f"{PREDICTIONS}/part-00000.parquet", b"three rows")
    writer.commit_result(
        PREDICTIONS,
        PredictionsManifest(
            **of, files=(part,), step=best.step, input={"source": "test"}, num_rows=3, rows=(3,)
        ),
    )
    report = {
        "run": folder.name,
        "train": {"step": STEPS[-1]},
        "best": {"name": BEST},
        "test_metrics": {ACCURACY.rpartition("/")[2]: 0.9},
        "evaluations": [{"uri": folder.store.uri(EVALUATION)}],
        "predictions": {"uri": folder.store.uri(PREDICTIONS)},
    }
    folder.store.write("report.json", json.dumps(report).encode())
    live = {"stage": "train", "attempt": 1, "step": 6, "total_steps": 6, "epoch": 3, "epochs": 3}
    folder.store.write("live.json", json.dumps(live | {"time": 1.0}).encode())


def reseal(folder: RunFolder, key: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change the manifest at `key` and make its digest anew, as anybody can."""
    content = json.loads(folder.store.read(key, MAX_DOCUMENT_BYTES))
    del content["digest"]
    folder.store.write(key, with_checksum(Anything(change(content))))


def resealed(text: bytes) -> bytes:
    """A manifest's text, which need not be JSON any more, with a digest made anew."""
    kept = text[: text.rindex(b",")]
    return kept + f',\n "digest": "{digest_of(kept)}"\n}}\n'.encode()


def vouch_for(folder: RunFolder, checkpoint: str, file: str, data: bytes) -> None:
    """Put these bytes into a file of the checkpoint, or of its journal, and have it listed so."""
    above = "journal" if file.endswith(".jsonl") else f"checkpoints/{checkpoint}"
    folder.store.write(f"{above}/{file}", data)
    entry = FileEntry.of(file, data).model_dump()

    def listed(content: dict[str, Any]) -> dict[str, Any]:
        field = "journal" if file.endswith(".jsonl") else "files"
        found = [entry if one["name"] == file else one for one in content[field]]
        assert entry in found
        return content | {field: found}

    reseal(folder, f"checkpoints/{checkpoint}/manifest.json", listed)


def everything(folder: Path) -> dict[str, tuple[int, bytes | str]]:
    """All that is below, by its path: its kind and its content or size, or where it leads."""
    found: dict[str, tuple[int, bytes | str]] = {}
    for path in folder.rglob("*"):
        kind, size_bytes = path.lstat().st_mode, path.lstat().st_size
        content: bytes | str = ""
        if stat.S_ISLNK(kind):
            content = os.readlink(path)
        elif stat.S_ISREG(kind):
            content = path.read_bytes() if size_bytes < 2**24 else str(size_bytes)
        found[str(path)] = (kind, content)
    return found
