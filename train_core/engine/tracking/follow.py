"""Follows a run folder: brings a tracker to the state that the folder has committed.

The driver's mirror follows in a loop, `evertrain mirror` once: what the tracker shows of the run is
derived from the folder. Following again changes nothing. `docs/tracking.md` lists what only the
driver can know.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from train_core.config import TrainConfig
from train_core.engine.tracking.description.datasets import (
    data_of_predictions,
    data_of_split,
    data_of_splits,
)
from train_core.engine.tracking.description.note import Links, Outcome, end_before, note
from train_core.engine.tracking.description.parameters import parameters
from train_core.engine.tracking.journal_points import (
    POSITION_TAG,
    Counters,
    Position,
    points_after,
    points_of,
    seconds,
)
from train_core.engine.tracking.refusals import Refusals
from train_core.engine.tracking.tracker import (
    DESCRIPTION,
    GATE_TAG,
    Known,
    Measured,
    Points,
    Stage,
    Status,
    TrackedModel,
    TrackedRun,
    Tracker,
)
from train_core.errors import CheckpointError, ConfigError
from train_core.loading import workload_class
from train_core.policy.end_status import EndStatus
from train_core.policy.logins import hide_secrets
from train_core.policy.metric_names import (
    BEST,
    TEST,
    VALIDATION,
    full_name,
    full_names,
    is_of,
    only,
)
from train_core.results import (
    CheckpointSummary,
    EvaluationResult,
    GateResult,
    ModelVersion,
    PredictionsResult,
    Report,
)
from train_core.storage.committed import open_result
from train_core.storage.coordination.pins import MLFLOW_MODEL, pin
from train_core.storage.evaluations import committed_evaluations
from train_core.storage.objects.store import Store
from train_core.storage.predictions import committed_predictions
from train_core.storage.records.journal import Entry, read_good_segments
from train_core.storage.records.manifest import (
    EvaluationManifest,
    PredictionsManifest,
    read_manifest,
)
from train_core.storage.records.names import (
    CHECKPOINTS,
    PREDICTIONS,
    CheckpointName,
    SegmentName,
)
from train_core.storage.records.run_record import RunRecord
from train_core.storage.registered_models.decisions import (
    gate_result,
    newest_decisions,
    newest_result,
    question_after_training,
)
from train_core.storage.registered_models.model_registry import ModelRegistry
from train_core.storage.run_folder import Commit, RunFolder
from train_core.storage.run_reports import read_report
from train_core.text.shown_text import shown, without_secrets

NOT_SHOWN = "evertrain.not_shown"
"""The tag with what the tracker refused of the run, and why."""
_JOB, _FLOW_RUN = "evertrain.ray_job", "evertrain.flow_run"
_FAILURE = "evertrain.failure"
"""The first line of why the run failed last; the description begins with it while it is FAILED."""
_PREDICTIONS_OF = "evertrain.predictions_created"
_CURVES_OF = "evertrain.curves_of"
"""The digest of the last checkpoint whose curves were drawn."""
_FIGURES_OF = "evertrain.figures_of"
"""The evaluation whose figures were drawn."""
_OPEN = ("RUNNING", "SCHEDULED")
_MAX_TAG = 5000
_log = logging.getLogger("train_core.tracking")


def tracked_run(folder: RunFolder, record: RunRecord, job_url: str = "") -> TrackedRun:
    """The run as a tracker identifies it. `job_url` is the page of the job that drives it."""
    return TrackedRun(
        id=folder.record_digest(),
        name=folder.name,
        url=folder.url,
        uri=folder.store.uri("").rstrip("/"),
        workload=record.config.workload,
        commit=record.code.get("commit", ""),
        job_url=job_url,
    )


class Follower:
    """Shows a run folder in a tracker, and remembers what it has sent.

    A run that is not `is_live` is shown afterwards: its stages are not set to running again.
    `config` has logins that the run's data may need and that run.json does not record.
    """

    def __init__(
        self,
        folder: RunFolder,
        refusals: Refusals,
        *,
        is_live: bool,
        job_url: str = "",
        config: TrainConfig | None = None,
    ) -> None:
        self.is_complete = False
        """Whether the training's last checkpoint was sent."""
        self.model_uri = ""
        """The address of the best checkpoint's model, once it is there."""
        self._folder = folder
        self._refusals = refusals
        self._is_live = is_live
        self._job_url = job_url
        self._config = config
        self._sent: dict[str, str] = {}
        """The results that were sent, as they were then."""
        self._has_measured = False
        """Whether models have metrics that were measured while training."""
        self._shown_in = ""

    def begin(self, tracker: Tracker, record: RunRecord) -> None:
        """Show the run as it was asked for; from now on with this tracker.

        Call it again with a new tracker after an outage: all commits are compared with it.
        """
        self._tracker, self._record = tracker, record
        self._statuses: dict[Stage, str] = {}
        self._commits: set[str] | None = None
        self._counters, self._reached = Counters(), Position()
        if tracker.place.run_id != self._shown_in:
            # What it had of another run, it has no more.
            self._sent, self._shown_in = {}, tracker.place.run_id
        self._open("pipeline")
        tags = {
            "evertrain.workload": record.config.workload,
            **{f"fingerprint.{key}": text for key, text in record.fingerprint.items()},
            _JOB: self._job_url,
        }
        with self._refusals.passing("the facts of the run"):
            tracker.tags("pipeline", {name: text for name, text in tags.items() if text})
            tracker.parameters("pipeline", parameters(record), data_of_splits(record))
        self._open("pipeline", is_running=True)
        if self._is_live:
            self.describe()

    def follow_commits(self) -> None:
        """Send the entries that the tracker does not have, if there is a new commit."""
        committed = self._committed_names()
        if self._commits is None or not committed <= self._commits:
            self.is_complete = self._show_training()
            self._commits = committed

    def follow_results(self, running: Collection[str] = ()) -> None:
        """Send evaluations, the report, decisions and predictions that were not sent yet.

        `running` are the stages that run now.
        """
        report, evaluations = self._read_evaluations()
        for result in evaluations:
            what = f"evaluation {_place(result.uri)}"
            self._send(what, partial(self._show_evaluation, result))
            if result.split == TEST:
                self._send(f"the figures of {what}", partial(self._show_figures, result))
        if report:
            self._follow_report(report)
        decided: list[GateResult] = []
        with self._refusals.passing("the decisions"):
            decided = [gate_result(self._folder, one) for one in newest_decisions(self._folder)]
        for found in decided:
            what = f"the decision on {found.decision.challenger.address}"
            self._send(what, partial(self.show_gate, found), found.model_dump_json())
        predictions: list[PredictionsResult] = []
        with self._refusals.passing("the predictions"):
            predictions = committed_predictions(self._folder)
        for one in predictions:
            what = f"predictions {one.uri.rpartition('/')[2]}"
            self._send(what, partial(self.show_predictions, one))
        has_metrics = bool(evaluations) or self._has_measured
        scored: dict[Stage, bool] = {"evaluate": has_metrics, "infer": bool(predictions)}
        for stage, has_results in scored.items():
            if stage in running:
                self._open(stage, is_running=True)
            elif has_results and (report or self._is_live or self.is_open(stage)):
                # Afterwards, one that was ended as failed stays so while the run has no report.
                self._close(stage, EndStatus.FINISHED)

    def is_open(self, stage: Stage = "pipeline") -> bool:
        """Whether the tracker shows the stage as one that has not ended."""
        return (self._statuses.get(stage) or self._open(stage).status) in _OPEN

    def end(self, status: EndStatus, why: str = "") -> None:
        """End every stage that still runs, the run last; `why` says why the run has failed.

        A run whose version waits for a person's answer has not ended: it is shown as SCHEDULED.
        """
        children: tuple[Stage, ...] = ("train", "evaluate", "infer")
        for stage in children:
            if self._statuses.get(stage) == "RUNNING":
                self._close(stage, status)
        # A run that is shown afterwards may have its final status already.
        if status != EndStatus.FAILED and self._waits():
            self._close("pipeline", "SCHEDULED")
        elif self._is_live or status == EndStatus.FINISHED or self.is_open():
            self._close("pipeline", status)
        if status == EndStatus.FAILED and why:
            self._tag("pipeline", {_FAILURE: without_secrets(shown(why))[:_MAX_TAG]})
        self.describe()
        self._tell_refusals()

    def describe(self) -> None:
        """Write the run's description anew, with the outcome once there is a report."""
        opened = self._open("pipeline")
        known, told = opened.tags, _reported(self._folder)
        decision, flow_run = known.get(GATE_TAG, ""), known.get(_FLOW_RUN, "")
        if told:
            decision, flow_run = told.decision or decision, told.flow_run or flow_run
        record = self._record
        link = flow_run or (f"`{record.flow_run}`" if record.flow_run else "")
        newest = self._folder.newest()
        text = note(
            record,
            newest,
            opened.status,
            told,
            gate=decision,
            cut_off=end_before(self._folder, newest.name.attempt) if newest else "",
            # It is shown as Markdown, of which an address may hold the end of code.
            folder_url=shown(self._folder.url).replace("`", " "),
            links=Links(link, known.get(_JOB, "")),
            failure=known.get(_FAILURE, ""),
        )
        tags = {GATE_TAG: decision, _FLOW_RUN: flow_run, DESCRIPTION: text}
        self._tag("pipeline", {name: tag for name, tag in tags.items() if tag})

    def show_gate(self, result: GateResult) -> None:
        """Show a decision in its run and on its version, and set the aliases."""
        from train_core.engine.metrics import figures
        from train_core.engine.metrics.gate_figures import champion_and_challenger

        challenger = result.decision.challenger
        self._tracker.tags("pipeline", {GATE_TAG: result.summary})
        self._keep_json("pipeline", "gate/decision.json", result.model_dump(mode="json"))
        figure = None
        with self._refusals.passing("the figure of champion and challenger"):
            figure = champion_and_challenger(result)
        if figure is not None:
            path = "gate/champion_and_challenger.png"
            self._tracker.artifact("pipeline", path, figures.png(figure))
        registry = ModelRegistry(self._folder.storage, challenger.model)
        self._tracker.version(result, registry, partial(self._complete_model, challenger))

    def show_predictions(self, result: PredictionsResult) -> None:
        """Show the predictions' address, checkpoint, input and number.

        Each batch inference has a file of its own; the tags and predictions.json are of the newest.
        """
        name = result.uri.rpartition("/")[2]
        manifest = open_result(self._folder.store, PredictionsManifest, f"{PREDICTIONS}/{name}")
        known = self._open("infer").tags
        if data := data_of_predictions(self._record, result):
            self._tracker.parameters("infer", {}, data)
        facts = hide_secrets(result.model_dump(mode="json"))
        self._keep_json("infer", f"predictions/{name}.json", facts)
        newest = known.get(_PREDICTIONS_OF)
        if not newest or seconds(newest) <= seconds(manifest.created_at):
            self._keep_json("infer", "predictions.json", facts)
            tags = {
                "evertrain.predictions": result.uri,
                "evertrain.checkpoint": result.checkpoint.uri,
                "evertrain.num_rows": str(result.num_rows),
                _PREDICTIONS_OF: manifest.created_at,
            }
            self._tracker.tags("infer", tags)
        self._close("infer", EndStatus.FINISHED)

    def show_models(self, checkpoints: Sequence[Commit], *, is_finished: bool) -> None:
        """Show the kept checkpoints as models, and no deleted one.

        `checkpoints` are those that are there, oldest first. While the training goes on, one
        without a validation gets no model: most of them are soon deleted.
        """
        for checkpoint in _with_weights(checkpoints):
            if is_finished or checkpoint.manifest.validated or checkpoint.manifest.reported:
                self._tracker.model(self._model(checkpoint))
        self._tracker.retain_models([one.digest for one in checkpoints], self._is_there)

    def _show_training(self) -> bool:
        """Send what the newest checkpoint covers; return whether the training is done."""
        checkpoints, store = self._folder.checkpoints(), self._folder.store
        is_finished = bool(checkpoints) and checkpoints[-1].manifest.is_last
        known = self._open("train", is_running=not is_finished)
        if not checkpoints:
            return False
        newest = checkpoints[-1]
        position = max(Position.parse(known.tags.get(POSITION_TAG, "")), self._reached)
        since = min(position.step, self._counters.position.step)
        segments = [file for file in newest.manifest.journal if _last_step(file.name) >= since]
        entries = read_good_segments(store, segments, is_final=is_finished)
        self._send_entries(entries, position)
        listed = [self._folder.summary(one).model_dump(mode="json") for one in checkpoints]
        with self._refusals.passing("the list of checkpoints"):
            self._keep_json("train", "checkpoints.json", {"checkpoints": listed})
            if quarantined := self._folder.quarantined():
                names = ", ".join(sorted(quarantined))
                self._tracker.tags("train", {"evertrain.quarantined": names})
                self._keep_json("train", "quarantined.json", quarantined)
        if is_finished:
            if known.tags.get(_CURVES_OF) != newest.digest:
                with self._refusals.passing("the curves"):
                    self._show_curves(newest)
            self._close("train", EndStatus.FINISHED)
        with self._refusals.passing("the models of the checkpoints"):
            self.show_models(checkpoints, is_finished=is_finished)
        return is_finished

    def _send_entries(self, entries: Iterable[Entry], after: Position) -> None:
        """Send the entries after a position; its tag stays before what the tracker refused."""
        reached = after

        def batches() -> Iterator[Points]:
            nonlocal reached
            for points, position in points_after(entries, after, self._counters):
                yield points
                reached = position

        with self._refusals.passing("the curves' points"):
            self._tracker.metrics("train", batches())
        self._reached = reached

    def _show_curves(self, newest: Commit) -> None:
        from train_core.engine.tracking.pictures import training_figures

        figures = training_figures(self._folder.store, newest)
        self._keep_figures("train", figures, {_CURVES_OF: newest.digest})

    def _read_evaluations(self) -> tuple[Report | None, Sequence[EvaluationResult]]:
        """The report, and the evaluations; also those that the report alone names, to be told."""
        report: Report | None = None
        found: list[EvaluationResult] = []
        with self._refusals.passing("the report"):
            report = read_report(self._folder)
        with self._refusals.passing("the evaluations"):
            found = committed_evaluations(self._folder)
        known = {_place(result.uri) for result in found}
        named = report.evaluations if report else []
        return report, [*found, *(one for one in named if _place(one.uri) not in known)]

    def _show_evaluation(self, result: EvaluationResult) -> None:
        """Show the metrics of a checkpoint at its step, and its confusion matrix if it has one.

        Those on the test split are values that the run ends with.
        """
        from train_core.engine.tracking.pictures import confusion_picture

        manifest, _ = read_manifest(Store(result.uri), EvaluationManifest)
        of, name = None, CheckpointName.parse(result.checkpoint.name)
        passing = self._refusals.passing(f"the model of {result.checkpoint.name}")
        with passing, suppress(FileNotFoundError, CheckpointError):
            if name:
                of = self._measured(self._folder.checkpoint(name), result.split)
        values = full_names(result.split, result.metrics)
        points = points_of(values, result.checkpoint.step, seconds(manifest.created_at))
        is_final = result.split == TEST
        self._tracker.metrics("evaluate", [Points(points)], of, is_final=is_final)
        config = self._record.config
        class_names = workload_class(config.workload).class_names if config.has_workload else ()
        for path, content in confusion_picture(result, class_names):
            self._tracker.artifact("evaluate", path, content)

    def _show_figures(self, result: EvaluationResult) -> None:
        """Draw what an evaluation's predictions were like, in the run that people tick, once."""
        from train_core.engine.tracking.pictures import score_pictures

        if self._open("pipeline").tags.get(_FIGURES_OF) != result.uri:
            config = self._config or self._record.config
            figures = score_pictures(self._folder, result, config)
            self._keep_figures("pipeline", figures, {_FIGURES_OF: result.uri})

    def _follow_report(self, report: Report) -> None:
        newest = self._folder.newest()
        is_of_newest = newest is None or report.train.step >= newest.step
        best = CheckpointName.parse(report.best.name)
        if not is_of_newest and not (best and self._folder.exists_checkpoint(best)):
            # The run was extended since, and has another best.
            return
        outcome = Outcome.of(self._folder, report)
        state = f"{outcome} after step {report.train.step}"
        self._send("the outcome", partial(self._show_outcome, outcome), state)
        # A part of its own: a model that cannot be shown must not hide the metrics.
        models = partial(self._complete_models, report.best, is_finished=is_of_newest)
        self._send("the models", models, f"{report.best.uri} after step {report.train.step}")

    def _show_outcome(self, outcome: Outcome) -> None:
        """Show the outcome on the run itself, so that a table of runs shows which is best, and why.

        The training's curves go on after the best checkpoint: its metrics have names of their own.
        """
        best = outcome.best
        created_s = seconds(self._folder.find(best.name).manifest.created_at)
        values = _of_best(_headline(self._record, best, outcome.test_metrics))
        points = Points(points_of(values, best.step, created_s))
        self._tracker.metrics("pipeline", [points], is_final=True)
        self._tracker.tags("pipeline", {"evertrain.best_checkpoint": best.uri})
        self.describe()

    def _complete_models(self, best: CheckpointSummary, *, is_finished: bool) -> None:
        """Complete the models of the kept checkpoints, and note the address of the best one's.

        Only a predictor knows what is in a folder that a training function reported: without one, a
        model refers to it.
        """
        checkpoints, asked = self._folder.checkpoints(), self._folder.newest_request()
        with self._refusals.passing("the models of the checkpoints"):
            self.show_models(checkpoints, is_finished=is_finished)
            self._show_measured(checkpoints)
        wanted = asked.requested.mirror_weights
        if not asked.config.has_workload or wanted == "none":
            return
        with self._refusals.passing(_weights_of(best.name)):
            self.model_uri = self._copy_weights(self._folder.find(best.name))
        for checkpoint in checkpoints if wanted == "kept" else ():
            with self._refusals.passing(_weights_of(str(checkpoint.name))):
                self._copy_weights(checkpoint)

    def _show_measured(self, checkpoints: Sequence[Commit]) -> None:
        """Give models the metrics that were measured while training.

        A model that has a metric of a name gets no second one: an evaluation's has the same value.
        """
        is_function = self._record.config.is_function
        for checkpoint in _with_weights(checkpoints):
            if not (checkpoint.manifest.validated or is_function):
                continue
            of = self._measured(checkpoint, "" if is_function else VALIDATION)
            values = checkpoint.metrics if is_function else only(VALIDATION, checkpoint.metrics)
            numbers = {name: value for name, value in values.items() if value is not None}
            created_s = seconds(checkpoint.manifest.created_at)
            points = points_of(numbers, checkpoint.step, created_s)
            self._tracker.metrics("evaluate", [Points(points)], of)
            self._has_measured = self._has_measured or bool(points)

    def _complete_model(self, version: ModelVersion) -> str:
        """Show a version's model, with a copy of the weights if the run wants any; its digest.

        Empty if the tracker takes no such model.
        """
        checkpoint, asked = self._folder.find(version.checkpoint), self._folder.newest_request()
        is_refused = _weights_of(version.checkpoint) in self._refusals.parts
        wants = asked.requested.mirror_weights != "none" and asked.config.has_workload
        if wants and not is_refused:
            with self._refusals.passing(_weights_of(version.checkpoint)):
                self._copy_weights(checkpoint)
        digest = ""
        with self._refusals.passing(f"the model of {version.checkpoint}"):
            self._tracker.model(self._model(checkpoint))
            digest = checkpoint.digest
        return digest  # noqa: RET504 (the block may end without a value)

    def _copy_weights(self, checkpoint: Commit) -> str:
        """Let the checkpoint's model load and serve; its address."""
        from train_core.engine.tracking.models.files import model_files

        # The pin comes before the copy, which somebody may register and give an alias at once.
        why = "its model is in MLflow"
        pin(self._folder.store, checkpoint.name, MLFLOW_MODEL, why, is_lasting=True)
        files = model_files(self._folder, self._record, checkpoint, self._config)
        return self._tracker.model(self._model(checkpoint), files)

    def _measured(self, checkpoint: Commit, split: str) -> Measured:
        """The checkpoint's model, which is shown, and the split's data if they are recorded."""
        self._tracker.model(self._model(checkpoint))
        record = self._record
        data = data_of_split(record, split) if split in record.datasets else None
        return Measured(checkpoint.digest, data)

    def _model(self, checkpoint: Commit) -> TrackedModel:
        manifest, workload = checkpoint.manifest, self._record.config.workload
        facts = {
            "step": manifest.step,
            "epoch": manifest.epoch,
            "samples_seen": manifest.samples_seen,
        }
        return TrackedModel(
            name=f"{workload.rpartition(':')[2]}-{checkpoint.name}",
            digest=checkpoint.digest,
            checkpoint=self._folder.store.uri(checkpoint.key),
            step=checkpoint.step,
            parameters={key: str(value) for key, value in facts.items()},
        )

    def _is_there(self, address: str) -> bool:
        """Whether the checkpoint is there, though it may be damaged."""
        name = CheckpointName.parse(address.rpartition("/")[2])
        return name is not None and self._folder.exists_checkpoint(name)

    def _waits(self) -> bool:
        """Whether the run's version waits for a person's answer, as far as it can be read."""
        try:
            question = question_after_training(self._folder, newest_result(self._folder))
        except (CheckpointError, ConfigError) as error:
            # One damaged decision does not keep the run's status from the tracker.
            _log.warning("whether a version of the run waits for approval is not known: %s", error)
            return False
        return question is not None and not question.is_answered

    def _tell_refusals(self) -> None:
        """Say in the tracker what it does not have; a mirror of all of it takes that back.

        A part that was left out of an earlier attempt may still be missing: it stays told.
        """
        if told := "; ".join(self._refusals.told):
            self._tag("pipeline", {NOT_SHOWN: told[:_MAX_TAG]})
        elif not self._is_live and NOT_SHOWN in self._open("pipeline").tags:
            self._tag("pipeline", {NOT_SHOWN: ""})

    def _open(self, stage: Stage, *, is_running: bool = False) -> Known:
        known = self._tracker.open(stage, is_running=is_running and self._is_live)
        self._statuses[stage] = known.status
        return known

    def _close(self, stage: Stage, status: Status) -> None:
        with self._refusals.passing(f"the status of {stage}"):
            self._tracker.close(stage, status)
        self._statuses[stage] = status

    def _tag(self, stage: Stage, tags: Mapping[str, str]) -> None:
        with self._refusals.passing(f"tags of {stage}"):
            self._tracker.tags(stage, tags)

    def _keep_json(self, stage: Stage, path: str, content: Any) -> None:
        self._tracker.artifact(stage, path, json.dumps(content, indent=2).encode())

    def _keep_figures(
        self, stage: Stage, files: Iterable[tuple[str, bytes]], then: Mapping[str, str]
    ) -> None:
        """Keep figures; set tags that say that all of them are there."""
        refused = self._refusals.count
        for path, content in files:
            self._tracker.artifact(stage, path, content)
        if self._refusals.count == refused:
            self._tracker.tags(stage, then)

    def _send(self, what: str, send: Callable[[], None], state: str = "") -> None:
        """Send a result once in that state. What is refused is left out; an outage raises."""
        if self._sent.get(what) == state:
            return
        # It would fail again and keep the later results waiting.
        with self._refusals.passing(what):
            send()
        self._sent[what] = state

    def _committed_names(self) -> set[str]:
        """The names that look committed. The requests are cheap: they are made at every poll."""
        parsed = map(CheckpointName.parse, self._folder.store.names(CHECKPOINTS))
        sent = self._commits or set()
        return {
            str(name)
            for name in parsed
            if name and (str(name) in sent or self._folder.exists_checkpoint(name))
        }


def _headline(
    record: RunRecord, best: CheckpointSummary, test_metrics: Mapping[str, float | None]
) -> dict[str, float | None]:
    """The best checkpoint's validation metrics, the monitored one, and the test metrics.

    Of a training function, they are all that it reported with the checkpoint, too.
    """
    tested = full_names(TEST, test_metrics)
    if record.config.is_function:
        return best.metrics | tested
    monitor = record.config.monitor
    chosen = {
        key: value
        for key, value in best.metrics.items()
        if key == monitor or is_of(VALIDATION, key)
    }
    return chosen | tested


def _of_best(values: Mapping[str, float | None]) -> dict[str, float | None]:
    """The headline by names that no curve has."""
    return {
        key if is_of(TEST, key) else full_name(BEST, key): value for key, value in values.items()
    }


def _reported(folder: RunFolder) -> Outcome | None:
    """The outcome as the run's report has it; None without a report that can be read."""
    with suppress(CheckpointError, ConfigError):
        report = read_report(folder)
        return Outcome.of(folder, report) if report else None
    return None


def _with_weights(checkpoints: Sequence[Commit]) -> list[Commit]:
    """Without the one that stands for the end of a training function, which has no files."""
    return [one for one in checkpoints if not one.manifest.is_function_end]


def _weights_of(checkpoint: str) -> str:
    """What is refused where the tracker takes no copy of the checkpoint's weights."""
    return f"the weights of {checkpoint}"


def _last_step(segment: str) -> int:
    name = SegmentName.parse(segment)
    if name is None:
        raise CheckpointError(f"{segment!r} is not the name of a journal segment")
    return name.last_step


def _place(uri: str) -> str:
    """Where an evaluation lies below all of its run's, wherever that lies."""
    return "/".join(uri.rstrip("/").split("/")[-2:])
