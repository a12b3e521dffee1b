"""The figures of a run as files: of its training, and of its predictions."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from train_core.config import TrainConfig
from train_core.datasets.protocols import fetch
from train_core.rank.data.recorded_workload import load_recorded
from train_core.rank.metrics import figures, score_figures
from train_core.rank.metrics.scores import Scores, WorstSample
from train_core.results import EvaluationResult
from train_core.storage.objects.store import Store
from train_core.storage.records.documents import parse_json
from train_core.storage.records.journal import read_good_segments
from train_core.storage.records.manifest import EvaluationManifest, read_manifest
from train_core.storage.records.names import CONFUSION_MATRIX_JSON, CURVES_PNG, SCORES_JSON
from train_core.storage.records.verified_files import read_file
from train_core.storage.run_folder import Commit, RunFolder
from train_core.workload import Workload, indexed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURES = "figures"
_log = logging.getLogger(__name__)


def training_figures(store: Store, newest: Commit) -> Iterator[tuple[str, bytes]]:
    """The curves, the learning rate and the throughput of a training that has ended."""
    yield CURVES_PNG, figures.curves_until(newest, store)
    entries = list(read_good_segments(store, newest.manifest.journal))
    drawn = {
        "learning_rate": figures.learning_rate(entries),
        "throughput": figures.throughput(entries),
    }
    for name, figure in drawn.items():
        if figure is not None:
            yield f"{FIGURES}/{name}.png", figures.png(figure)


def score_pictures(
    folder: RunFolder, result: EvaluationResult, config: TrainConfig
) -> Iterator[tuple[str, bytes]]:
    """What an evaluation's predictions were like, as files.

    `config` has logins that the samples may need and that run.json does not record.
    """
    found = _Evaluation(folder, result)
    yield from found.pictures()
    if (scores := found.scores()) and scores.worst:
        yield from found.worst(scores.worst, config)


def confusion_picture(
    result: EvaluationResult, class_names: Sequence[str]
) -> Iterator[tuple[str, bytes]]:
    """The confusion matrix of an evaluation, if it has one."""
    store = Store(result.uri)
    manifest, _ = read_manifest(store, EvaluationManifest)
    for file in (file for file in manifest.files if file.name == CONFUSION_MATRIX_JSON):
        data = read_file(store, file.name, file)
        found = parse_json(data, f"{store.uri(file.name)} is not JSON")
        names = class_names or [str(label) for label in found["labels"]]
        title = f"{result.split}, step {result.checkpoint.step}"
        figure = figures.confusion_matrix(found["counts"], names, title)
        yield f"confusion_matrix/{result.split}-{result.checkpoint.name}.png", figures.png(figure)


class _Evaluation:
    """One evaluation, read from its files."""

    def __init__(self, folder: RunFolder, result: EvaluationResult) -> None:
        self._folder = folder
        self._split = result.split
        self._store = Store(result.uri)
        manifest, _ = read_manifest(self._store, EvaluationManifest)
        self._files = {file.name: file for file in manifest.files}
        self._title = f"{result.split}, step {result.checkpoint.step}"
        matrix = self._read(CONFUSION_MATRIX_JSON) or {}
        self._counts: list[list[int]] = matrix.get("counts", [])
        self._names = [str(label) for label in matrix.get("labels", [])]

    def pictures(self) -> Iterator[tuple[str, bytes]]:
        """The figures of all predictions."""
        if self._counts:
            counts, names = self._counts, self._names
            yield self._figure(
                "confusion_matrix", figures.confusion_matrix(counts, names, self._title)
            )
            of_classes = score_figures.class_scores(counts, names)
            yield self._figure("per_class", score_figures.per_class(of_classes, self._title))
            yield self._text("per_class.csv", score_figures.class_table(of_classes))
        scores = self.scores()
        if scores and scores.bins:
            yield self._figure("calibration", score_figures.calibration(scores, self._title))
        if scores and scores.score_bins:
            yield self._figure("two_classes", score_figures.two_classes(scores, self._title))
        elif scores and scores.pairs:
            yield self._figure("residuals", score_figures.residuals(scores, self._title))

    def scores(self) -> Scores | None:
        """What was collected of the predictions; an earlier version of evertrain collected none."""
        found = self._read(SCORES_JSON)
        return Scores.model_validate(found) if found else None

    def worst(
        self, samples: Sequence[WorstSample], config: TrainConfig
    ) -> Iterator[tuple[str, bytes]]:
        """The worst predicted samples as a table and, if they are images, as a picture."""
        heading = ",".join(WorstSample.model_fields)
        rows = (f"{one.index},{one.target},{one.prediction},{one.score}" for one in samples)
        yield self._text("worst_examples.csv", "".join(f"{line}\n" for line in (heading, *rows)))
        try:
            workload = load_recorded(self._folder, config)
            images = _images(workload, self._split, samples)
        except Exception as error:  # noqa: BLE001 (the user's code reads data that may be gone)
            _log.warning("the worst examples are not shown as images: %s", error)
            return
        if images:
            title = f"{self._title}: worst predictions"
            figure = score_figures.worst_examples(images, samples, self._names, title)
            yield self._figure("worst_examples", figure)

    def _figure(self, name: str, figure: Figure) -> tuple[str, bytes]:
        return f"{FIGURES}/{self._split}/{name}.png", figures.png(figure)

    def _text(self, name: str, text: str) -> tuple[str, bytes]:
        return f"{FIGURES}/{self._split}/{name}", text.encode()

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
