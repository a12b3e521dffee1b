"""A second tracker: a folder of JSON lines, as plain as a tracker can be.

<run's id>/<stage>/tags.json  parameters.jsonl  metrics.jsonl  artifacts/…
<run's id>/models.json  versions.json
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from train_core.champion.log import ModelLog
from train_core.errors import TrackingError
from train_core.results import GateResult, Tracking
from train_core.tracking.refusals import Failure, Refusals, failure_of
from train_core.tracking.tracker import (
    Data,
    Known,
    Measured,
    ModelFiles,
    Point,
    Points,
    Stage,
    Status,
    TrackedModel,
    TrackedRun,
)

STATUS = "status"


class JsonLinesTracker:
    """Shows a run in files. What is there already is not written again."""

    def __init__(
        self, uri: str, experiment: str, run: TrackedRun, refusals: Refusals | None = None
    ) -> None:
        self._uri = uri
        self._run = run
        self._folder = Path(uri, experiment, run.id[:8])

    @staticmethod
    def contact(uri: str, experiment: str) -> None:
        if not Path(uri).is_dir():
            raise TrackingError(f"there is no folder {uri} for experiment {experiment!r}")

    @staticmethod
    def failure_of(error: BaseException) -> Failure:
        return failure_of(error)

    @property
    def place(self) -> Tracking:
        return Tracking(tracking_uri=self._uri, run_id=self._run.id)

    def open(self, stage: Stage, *, is_running: bool = False) -> Known:
        found = self._read(f"{stage}/tags.json")
        if STATUS not in found or is_running:
            found[STATUS] = "RUNNING"
            self._write(f"{stage}/tags.json", found)
        return Known({name: text for name, text in found.items() if name != STATUS}, found[STATUS])

    def parameters(
        self, stage: Stage, values: Mapping[str, str], data: Sequence[Data] = ()
    ) -> None:
        self._add(f"{stage}/parameters.jsonl", [{name: text} for name, text in values.items()])
        self._add(f"{stage}/data.jsonl", [asdict(one) for one in data])

    def metrics(
        self,
        stage: Stage,
        batches: Iterable[Points],
        of: Measured | None = None,
        *,
        is_final: bool = False,
    ) -> None:
        for batch in batches:
            lines = [asdict(one) for one in batch.points]
            self._add_points(f"{stage}/{'final' if is_final else 'metrics'}.jsonl", lines, is_final)
            if of:
                self._add_metrics_of_model(of.model, batch.points)
            if batch.tags:
                self.tags(stage, batch.tags)

    def artifact(self, stage: Stage, path: str, content: bytes) -> None:
        file = self._folder / stage / "artifacts" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)

    def model(self, model: TrackedModel, files: ModelFiles | None = None) -> str:
        known = self._read("models.json")
        known.setdefault(model.digest, {"metrics": {}} | asdict(model))
        self._write("models.json", known)
        address = self._folder / "models" / model.digest[:8]
        if files and not address.exists():
            files.write(address.with_suffix(".part"))
            shutil.move(address.with_suffix(".part"), address)
        return str(address)

    def retain_models(self, kept: Sequence[str], is_there: Callable[[str], bool]) -> None:
        known = self._read("models.json").items()
        stay = {key: one for key, one in known if key in kept or is_there(one["checkpoint"])}
        self._write("models.json", stay)

    def version(self, result: GateResult, log: ModelLog, logged: Callable[[], str]) -> None:
        known = self._read("versions.json")
        address = result.decision.challenger.address
        model = known[address]["model"] if address in known else logged()
        known[address] = {"model": model, "says": result.summary}
        champion = log.read().champion
        known["champion"] = champion.version.address if champion else None
        self._write("versions.json", known)

    def tags(self, stage: Stage, tags: Mapping[str, str]) -> None:
        known = self._read(f"{stage}/tags.json") | dict(tags)
        self._write(f"{stage}/tags.json", {name: text for name, text in known.items() if text})

    def close(self, stage: Stage, status: Status) -> None:
        self.tags(stage, {STATUS: str(status)})

    def _add_points(self, key: str, points: list[dict[str, Any]], is_final: bool) -> None:
        """Add points; of a value that the run ends with, another one only if it differs."""
        there = [(one["name"], one["value"]) for one in self._lines(key)] if is_final else []
        self._add(key, [one for one in points if (one["name"], one["value"]) not in there])

    def _add_metrics_of_model(self, digest: str, points: Sequence[Point]) -> None:
        known = self._read("models.json")
        for point in points:
            known[digest]["metrics"].setdefault(point.name, point.value)
        self._write("models.json", known)

    def _add(self, key: str, lines: list[dict[str, Any]]) -> None:
        there = self._lines(key)
        new = [line for line in lines if line not in there]
        if new:
            path = self._folder / key
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                file.writelines(json.dumps(line) + "\n" for line in new)

    def _lines(self, key: str) -> list[dict[str, Any]]:
        path = self._folder / key
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def _read(self, key: str) -> dict[str, Any]:
        path = self._folder / key
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found

    def _write(self, key: str, content: Mapping[str, Any]) -> None:
        path = self._folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(content, indent=1, sort_keys=True))
        part.replace(path)
