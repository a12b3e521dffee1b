"""The figures of a run in MLflow: of its training, and of its predictions on the test split."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from train_core.config import TrainConfig
from train_core.datasets.protocols import fetch
from train_core.engine.data.recorded_workload import load_recorded
from train_core.engine.metrics import figures, score_figures
from train_core.engine.metrics.scores import Scores, WorstSample
from train_core.engine.tracking.mlflow_runs import MlflowRuns
from train_core.results import EvaluationResult
from train_core.storage.objects.store import Store
from train_core.storage.records.documents import parse_json
from train_core.storage.records.journal import read_good_segments
from train_core.storage.records.manifest import EvaluationManifest, read_manifest
from train_core.storage.records.names import CONFUSION_MATRIX_JSON, CURVES_PNG, SCORES_JSON
from train_core.storage.records.verified_files import read_file
from train_core.storage.run_folder import Commit
from train_core.workload import Workload, indexed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURES = "figures"
_CURVES_OF = "evertrain.curves_of"
"""The digest of the last checkpoint whose curves were drawn."""
_FIGURES_OF = "evertrain.figures_of"
"""The evaluation whose figures were drawn."""
_log = logging.getLogger(__name__)


def show_curves(runs: MlflowRuns, newest: Commit) -> None:
    """Draw the curves, the learning rate and the throughput of a training that has ended, once."""
    stage, store = runs.training, runs.folder.store
    if runs.tag(stage, _CURVES_OF) == newest.digest:
        return
    refused = runs.refusals.count
    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder, CURVES_PNG)
        picture.write_bytes(figures.curves_until(newest, store))
        runs.client.log_artifact(runs.run_id(stage), str(picture))
    entries = list(read_good_segments(store, newest.manifest.journal))
    drawn = {
        "learning_rate": figures.learning_rate(entries),
        "throughput": figures.throughput(entries),
    }
    for name, figure in drawn.items():
        if figure is not None:
            runs.client.log_figure(runs.run_id(stage), figure, f"{FIGURES}/{name}.png")
    if runs.refusals.count == refused:
        runs.set_tags(stage, {_CURVES_OF: newest.digest})


def show_score_figures(
    runs: MlflowRuns, result: EvaluationResult, config: TrainConfig | None = None
) -> None:
    """Draw what an evaluation's predictions were like, in the run that people tick, once.

    `config` has logins that the samples may need and that run.json does not record.
    """
    if runs.tag("pipeline", _FIGURES_OF) == result.uri:
        return
    refused = runs.refusals.count
    found = _Evaluation(runs, result)
    for name, figure in found.figures().items():
        found.log_figure(name, figure)
    if (scores := found.scores()) and scores.worst:
        found.log_worst(scores.worst, config or runs.record.config)
    if runs.refusals.count == refused:
        runs.set_tags("pipeline", {_FIGURES_OF: result.uri})


class _Evaluation:
    """One evaluation, read from its files, and where its figures go."""

    def __init__(self, runs: MlflowRuns, result: EvaluationResult) -> None:
        self._runs = runs
        self._split = result.split
        self._store = Store(result.uri)
        manifest, _ = read_manifest(self._store, EvaluationManifest)
        self._files = {file.name: file for file in manifest.files}
        self._title = f"{result.split}, step {result.checkpoint.step}"
        matrix = self._read(CONFUSION_MATRIX_JSON) or {}
        self._counts: list[list[int]] = matrix.get("counts", [])
        self._names = [str(label) for label in matrix.get("labels", [])]

    def figures(self) -> dict[str, Figure]:
        """The figures by their names."""
        found: dict[str, Figure] = {}
        if self._counts:
            counts, names = self._counts, self._names
            found["confusion_matrix"] = figures.confusion_matrix(counts, names, self._title)
            of_classes = score_figures.class_scores(counts, names)
            found["per_class"] = score_figures.per_class(of_classes, self._title)
            self._log_text("per_class.csv", score_figures.class_table(of_classes))
        scores = self.scores()
        if scores and scores.bins:
            found["calibration"] = score_figures.calibration(scores, self._title)
        if scores and scores.score_bins:
            found["two_classes"] = score_figures.two_classes(scores, self._title)
        elif scores and scores.pairs:
            found["residuals"] = score_figures.residuals(scores, self._title)
        return found

    def scores(self) -> Scores | None:
        """What was collected of the predictions; an earlier version of evertrain collected none."""
        found = self._read(SCORES_JSON)
        return Scores.model_validate(found) if found else None

    def log_worst(self, samples: Sequence[WorstSample], config: TrainConfig) -> None:
        """Log the worst predicted samples as a table and, if they are images, as a picture."""
        heading = ",".join(WorstSample.model_fields)
        rows = (f"{one.index},{one.target},{one.prediction},{one.score}" for one in samples)
        table = "".join(f"{line}\n" for line in (heading, *rows))
        self._log_text("worst_examples.csv", table)
        try:
            workload = load_recorded(self._runs.folder, config)
            images = _images(workload, self._split, samples)
        except Exception as error:  # noqa: BLE001 (the user's code reads data that may be gone)
            _log.warning("the worst examples are not shown as images: %s", error)
            return
        if images:
            title = f"{self._title}: worst predictions"
            figure = score_figures.worst_examples(images, samples, self._names, title)
            self.log_figure("worst_examples", figure)

    def log_figure(self, name: str, figure: Figure) -> None:
        """Log a figure under its name."""
        place = f"{FIGURES}/{self._split}/{name}.png"
        self._runs.client.log_figure(self._runs.run_id("pipeline"), figure, place)

    def _log_text(self, name: str, text: str) -> None:
        place = f"{FIGURES}/{self._split}/{name}"
        self._runs.client.log_text(self._runs.run_id("pipeline"), text, place)

    def _read(self, name: str) -> Any:
        file = self._files.get(name)
        if file is None:
            return None
        data = read_file(self._store, name, file)
        return parse_json(data, f"{self._store.uri(name)} is not JSON")


def _images(
    workload: Workload[Any], split: Any, samples: Sequence[WorstSample]
) -> list[npt.NDArray[Any]]:
    """The samples' images, of the first raw column that has some; none if no column has."""
    indices = np.array([sample.index for sample in samples], np.int64)
    columns = fetch(indexed(workload, split), indices)
    for name, rows in columns.items():
        if name in workload.target_columns or getattr(rows, "ndim", 0) < 3:
            continue
        found = [score_figures.as_image(row) for row in rows]
        if all(image is not None for image in found):
            return [image for image in found if image is not None]
    return []
