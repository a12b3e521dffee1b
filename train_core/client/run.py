"""A run to look at, as from a notebook: its metrics as a DataFrame, and its checkpoints."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, get_args

from train_core.client.checkpoint import Checkpoint
from train_core.errors import CheckpointError, ConfigError
from train_core.policy.checkpoints.selection import Candidate, Order, ranked
from train_core.policy.metric_names import TEST
from train_core.results import PredictionsResult
from train_core.storage.committed import with_files
from train_core.storage.predictions import committed_predictions, verified_predictions
from train_core.storage.records.journal import Entry, read_good_segments, read_segments
from train_core.storage.records.manifest import EvaluationManifest
from train_core.storage.records.names import EVALUATIONS
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_reports import reported_best

if TYPE_CHECKING:
    from pandas import DataFrame

_log = logging.getLogger(__name__)


class Run:
    """A run of a storage, opened by `open_run`; in the spirit of Ray Train's `Result`.

    A Run has the run folder as its attribute `folder`, and is no subclass of it: evertrain's own
    code reads the folder, people look at the Run. All functions of `train_core` that take a run
    take either. A Run keeps nothing in memory: each access reads the run folder, so a run that
    trains shows more each time.

    >>> from train_core import open_run
    >>> run = open_run("s3://bucket/runs/digits")  # doctest: +SKIP
    >>> run.metrics["train/loss"].plot()  # doctest: +SKIP
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    @property
    def name(self) -> str:
        """Its name in its storage."""
        return self.folder.name

    @property
    def url(self) -> str:
        """Its folder's path or URL, which `open_run` opens."""
        return self.folder.url

    @property
    def metrics(self) -> DataFrame:
        """Every committed metric of every step: a row a step, a column a metric, as float64.

        What was not measured at a step, or was not finite, is NaN. A damaged part of the journal is
        left out, with a warning, and so is what a newer evertrain has committed.
        """
        return _table(_journal(self.folder), lambda entry: entry.metrics)

    @property
    def rates(self) -> DataFrame:
        """What depends on the machine, as samples per second; as `metrics`."""
        return _table(_journal(self.folder), lambda entry: entry.rates)

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """The good checkpoints, oldest first."""
        return [Checkpoint.in_run(self.folder, one) for one in with_files(self.folder.scan().good)]

    @property
    def return_value(self) -> Any:
        """What its training function returned on rank 0; None: nothing, or it has not ended."""
        newest = self.folder.scan().newest
        return newest.manifest.returned if newest else None

    @property
    def report(self) -> dict[str, Any] | None:
        """The outcome, as report.json has it; None while the run has none."""
        return self.folder.report()

    @property
    def test_metrics(self) -> dict[str, float | None]:
        """The metrics on the test split of the best checkpoint; empty while it has none."""
        found = [
            manifest
            for name in self.folder.store.names(EVALUATIONS)
            for _, manifest in self.folder.results(f"{EVALUATIONS}/{name}", EvaluationManifest)
            if manifest.split == TEST and not manifest.max_batches
        ]
        best = reported_best(self.folder)
        found = [one for one in found if best in (None, one.checkpoint)]
        newest = max(found, key=lambda one: one.created_at, default=None)
        return dict(newest.metrics) if newest else {}

    @property
    def inferences(self) -> list[PredictionsResult]:
        """What batch inferences have committed into the run, oldest first: from which input."""
        return committed_predictions(self.folder)

    def predictions(self, inference: PredictionsResult | None = None) -> DataFrame:
        """The predictions of one of `inferences`, or of the newest: a row an input's row.

        Raises ConfigError if there are none, FileNotFoundError if they were deleted, and
        CheckpointError if a file was altered.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        found = inference or next(reversed(self.inferences), None)
        if found is None:
            raise ConfigError(f"run {self.name!r} has no predictions: `evertrain infer` makes some")
        files = verified_predictions(self.folder, found)
        return pa.concat_tables(pq.read_table(io.BytesIO(data)) for data in files).to_pandas()

    def latest(self) -> Checkpoint:
        """The newest checkpoint. Raises ConfigError if there is none."""
        return self._some_checkpoints()[-1]

    def best(self, metric: str | None = None, order: Order | None = None) -> Checkpoint:
        """The checkpoint with the best value of the metric; of equal ones the latest.

        The run's monitored metric and its order are the defaults; any other metric needs an
        `order`, "max" or "min". Only checkpoints that have the metric count. Raises ConfigError if
        none has.
        """
        metric, order = self._ranking(metric, order)
        found = {one.name: one for one in self._some_checkpoints()}
        measured = [
            Candidate(one.name, one.step, one.metrics)
            for one in found.values()
            if one.metrics.get(metric) is not None
        ]
        if not measured:
            names = sorted({name for one in found.values() for name in one.metrics})
            raise ConfigError(
                f"no checkpoint of run {self.name!r} has a value of metric {metric!r}; their "
                f"metrics are {', '.join(names) or 'none'}"
            )
        return found[ranked(measured, metric, order)[0].name]

    def at(self, step: int) -> Checkpoint:
        """The checkpoint of that step; of several attempts' the newest. Raises ConfigError."""
        found = {one.step: one for one in self.checkpoints}
        if step not in found:
            steps = ", ".join(map(str, found)) or "none"
            raise ConfigError(f"run {self.name!r} has no checkpoint of step {step}; it has {steps}")
        return found[step]

    def _some_checkpoints(self) -> list[Checkpoint]:
        found = self.checkpoints
        if found:
            return found
        newest = self.folder.scan().newest
        if newest and newest.manifest.is_last:
            raise ConfigError(
                f"run {self.name!r} has no checkpoint: its training function reported none"
            )
        raise ConfigError(f"run {self.name!r} has no checkpoint yet: see {self.url}")

    def _ranking(self, metric: str | None, order: Order | None) -> tuple[str, Order]:
        if order is not None and order not in get_args(Order):
            raise ConfigError(f"order={order!r}: give 'max' or 'min'")
        config = self.folder.newest_request().config
        if not (metric or config.monitor):
            raise ConfigError(
                f"run {self.name!r} monitors no metric: give one, with order='max' or order='min'"
            )
        if metric in (None, config.monitor):
            return config.monitor, order or config.order
        if order is None:
            raise ConfigError(
                f"metric {metric!r} is not the one that run {self.name!r} monitors "
                f"({config.monitor!r}): give order='max' or order='min' with it"
            )
        return str(metric), order


def folder_of(run: Run | RunFolder) -> RunFolder:
    """The folder of a run, which may be that itself."""
    return run.folder if isinstance(run, Run) else run


def _journal(folder: RunFolder) -> list[Entry]:
    """The committed entries, oldest first; of a damaged journal those that are left."""
    found = folder.scan()
    for reason in found.newer.values():
        _log.warning("newer metrics are not shown: %s", reason)
    newest = found.newest
    while newest:
        try:
            return list(read_segments(folder.store, newest.manifest.journal))
        except CheckpointError:
            # A commit may have merged the segments since, and retention deleted them.
            newer = folder.scan().newest
            if newer is None or newer.name == newest.name:
                return list(read_good_segments(folder.store, newest.manifest.journal))
            newest = newer
    return []


def _table(
    entries: Iterable[Entry], values_of: Callable[[Entry], Mapping[str, float | None]]
) -> DataFrame:
    """A row a step: the training's entry and the validation's of one step are one row."""
    # Imported late: it takes a second, and few programs look at metrics.
    import pandas as pd

    rows: dict[int, dict[str, float | None]] = {}
    for entry in entries:
        if values := values_of(entry):
            rows.setdefault(entry.step, {}).update(values)
    index = pd.Index(rows, name="step", dtype="int64")
    return pd.DataFrame(list(rows.values()), index=index, dtype="float64")
