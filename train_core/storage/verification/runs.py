"""Whether a run still is what was committed, to the last byte: every document and every file.

`live.json`, `curves.png`, pins and mailboxes are left out: no result depends on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from train_core.errors import CheckpointError, ConfigError
from train_core.policy.checkpoints.layout import part_of
from train_core.results import Result
from train_core.storage.committed import Commit, Scan, open_checkpoint, open_result, scan
from train_core.storage.coordination import lease, pins
from train_core.storage.coordination.fence_list import read_fence_list
from train_core.storage.coordination.stop_request import stop_request
from train_core.storage.records.amendments import read_amendment
from train_core.storage.records.journal import fault_of_segment
from train_core.storage.records.manifest import (
    EvaluationManifest,
    FileEntry,
    PredictionsManifest,
)
from train_core.storage.records.names import (
    ASKED,
    EVALUATIONS,
    LEASES,
    PREDICTIONS,
    REPORT_JSON,
    RUN_JSON,
    CheckpointName,
    LeaseName,
    has_manifest,
    manifest_names,
)
from train_core.storage.records.quarantine import read_mark
from train_core.storage.records.tensor_file import header_end, layout_of
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_reports import reported, reported_best
from train_core.storage.verification.checkpoints import faults_of_files, file_faults

_AT_ONCE = 8
_UNREADABLE = (CheckpointError, ConfigError, FileNotFoundError)


class Verdict(Result):
    """The result of verifying one part of a run."""

    what: str
    """A checkpoint's name; of anything else its key in the run folder."""
    files: int | None = None
    journal: int | None = None
    """Journal segments of a checkpoint."""
    faults: list[str] = []
    """Empty if it is what was committed."""
    quarantined: str | None = None
    """Why a checkpoint that is good now was quarantined, if it was."""


class RunVerification:
    """Reads all of a run. One segment of the journal is read once, however many list it."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._store = folder.store

    def run(self, only: CheckpointName | None = None) -> Iterator[Verdict]:
        """The verdict on each part of the run, or on `only` one checkpoint."""
        found: Scan | None = None
        try:
            found = scan(self._store, only)
        except CheckpointError as error:
            # Without the fence list nobody knows which checkpoints count.
            yield Verdict(what=LEASES, faults=[str(error)])
        if only is None:
            yield self._record()
            yield from self._bookkeeping()
        if found:
            yield from self._checkpoints(found, only)
        if only is None:
            yield from self._results()
            yield from self._report(found)

    def _record(self) -> Verdict:
        faults = []
        try:
            record = self._folder.record()
            if record.name != self._folder.name:
                faults.append(
                    f"{RUN_JSON} is that of run {record.name!r}: the folder was copied or renamed"
                )
            self._folder.files_of(record)
            self._folder.fitted_of(record)
        except _UNREADABLE as error:
            faults.append(str(error))
        return Verdict(what=RUN_JSON, faults=faults)

    def _bookkeeping(self) -> Iterator[Verdict]:
        """What was asked later, and the leases: those that cannot be read."""
        for name in filter(None, map(LeaseName.parse, self._store.names(ASKED))):
            yield from self._unreadable(f"{ASKED}/{name}", read_amendment, name.attempt)
        for name in filter(None, map(LeaseName.parse, self._store.names(LEASES))):
            for read in (lease.read, stop_request):
                yield from self._unreadable(f"{LEASES}/{name}", read, name.attempt)

    def _unreadable(
        self, key: str, read: Callable[[Any, int], object], attempt: int
    ) -> Iterator[Verdict]:
        try:
            read(self._store, attempt)
        except FileNotFoundError:
            return
        except (CheckpointError, ConfigError) as error:
            yield Verdict(what=key, faults=[str(error)])

    def _checkpoints(self, found: Scan, only: CheckpointName | None) -> Iterator[Verdict]:
        listed = {segment: None for one in found.good for segment in one.manifest.journal}
        with ThreadPoolExecutor(_AT_ONCE, "verify") as threads:
            check = partial(fault_of_segment, self._store)
            segments = dict(zip(listed, threads.map(check, listed), strict=True))
            for verdict in threads.map(partial(self._checkpoint, segments), found.good):
                if verdict:
                    yield verdict
        bad = {name: f"damaged: {reason}" for name, reason in found.damaged.items()}
        bad |= {name: f"newer: {reason}" for name, reason in found.newer.items()}
        for name, fault in bad.items():
            yield Verdict(what=str(name), faults=[fault])
        marked = self._folder.quarantined() if found.quarantined else {}
        for text, reason in marked.items():
            named = CheckpointName.parse(text)
            if named and only in (None, named):
                yield self._quarantined(named, reason)

    def _quarantined(self, name: CheckpointName, reason: str) -> Verdict:
        """The verdict on a checkpoint with a mark, which is read as if it had none."""
        fault = f"quarantined: {reason}"
        try:
            # One that evertrain has not written is somebody's, and stays.
            read_mark(self._store, name)
            one = open_checkpoint(self._store, name)
        except _UNREADABLE:
            return Verdict(what=str(name), faults=[fault])
        segments = {file: fault_of_segment(self._store, file) for file in one.manifest.journal}
        verdict = self._checkpoint(segments, one)
        if verdict is None or verdict.faults:
            return Verdict(what=str(name), faults=[fault])
        if read_fence_list(self._store).excludes(name):
            why = "All its bytes are good now, but a later attempt began without it"
            return Verdict(what=str(name), faults=[f"{fault}. {why}: delete its folder"])
        return verdict.model_copy(update={"quarantined": reason})

    def _checkpoint(self, segments: dict[FileEntry, str], one: Commit) -> Verdict | None:
        """The verdict on a checkpoint; None if it was deleted meanwhile.

        `segments` has the fault of each segment, if it has one.
        """
        manifest = one.manifest
        faults = file_faults(self._folder, one) + self._contents(one)
        faults += filter(None, map(segments.get, manifest.journal))
        if faults and not self._folder.exists_checkpoint(one.name):
            return None
        return Verdict(
            what=str(one.name),
            files=len(manifest.files),
            journal=len(manifest.journal),
            faults=faults,
        )

    def _contents(self, checkpoint: Commit) -> list[str]:
        """What is wrong with the headers of its tensor files: programs may read them otherwise."""
        if checkpoint.manifest.reported:
            return []
        faults = []
        for file in checkpoint.manifest.files:
            key = f"{checkpoint.key}/{file.name}"
            if part_of(file.name) is None:
                continue
            try:
                # Of another size it is a fault already.
                if self._store.size_bytes(key) == file.size_bytes:
                    end = header_end(self._store.piece(key, 0, 8), file.size_bytes, key)
                    layout_of(self._store.piece(key, 0, end), file.size_bytes, key)
            except FileNotFoundError:
                continue
            except CheckpointError as error:
                faults.append(str(error))
        return faults

    def _results(self) -> Iterator[Verdict]:
        evaluated = (f"{EVALUATIONS}/{name}" for name in self._store.names(EVALUATIONS))
        for above in (*evaluated, PREDICTIONS):
            for name, below in sorted(self._store.in_folders(above).items()):
                key = f"{above}/{name}"
                if has_manifest(key, below):
                    yield self._result(key)
                # What a process that died has left is no fault: the next attempt deletes it.
                elif not any(pin.pin and not pin.pin.is_lasting for pin in self._pins_of(key)):
                    file = manifest_names(key)[0]
                    why = f"{key} has no {file}: it was never committed, or that is gone"
                    yield Verdict(what=key, faults=[why])

    def _pins_of(self, key: str) -> list[pins.FoundPin]:
        above, _, name = key.rpartition("/")
        checkpoint = name.rpartition("-")[0] if above == PREDICTIONS else above.rpartition("/")[2]
        return pins.pins_of(self._store, checkpoint)

    def _result(self, key: str) -> Verdict:
        manifest: EvaluationManifest | PredictionsManifest
        try:
            if key.startswith(f"{PREDICTIONS}/"):
                manifest = open_result(self._store, PredictionsManifest, key)
            else:
                manifest = open_result(self._store, EvaluationManifest, key)
        except _UNREADABLE as error:
            return Verdict(what=key, faults=[str(error)])
        faults = faults_of_files(self._store, key, manifest.files)
        return Verdict(what=key, files=len(manifest.files), faults=faults)

    def _report(self, found: Scan | None) -> Iterator[Verdict]:
        try:
            report = self._folder.report()
            if report is None:
                return
            faults = self._faults_of_report(report, found)
        except (CheckpointError, ConfigError) as error:
            faults = [str(error)]
        yield Verdict(what=REPORT_JSON, faults=faults)

    def _faults_of_report(self, report: dict[str, Any], found: Scan | None) -> list[str]:
        """What the report says of the run and what is there: the newest and the best always are."""
        faults = []
        best = reported_best(self._folder)
        step = reported(report, self._folder, int, "train", "step")
        newest = max((one.step for one in found.good), default=0) if found else step
        if found and best and best not in {str(one.name) for one in found.good}:
            faults.append(f"{REPORT_JSON} names {best} as the best, which is no good checkpoint")
        if newest < step:
            faults.append(
                f"{REPORT_JSON} tells of step {step}, and the newest good checkpoint is of {newest}"
            )
        if (name := report.get("run", self._folder.name)) != self._folder.name:
            faults.append(f"{REPORT_JSON} is that of run {name!r}")
        missing = (
            key for key in _results_named(report) if not has_manifest(key, self._store.names(key))
        )
        return faults + [f"{REPORT_JSON} names {key}, which is not there" for key in missing]


def _results_named(report: dict[str, Any]) -> Iterator[str]:
    """The keys of the evaluations and predictions that the report names by their addresses."""
    evaluations = report.get("evaluations")
    for above, num_names, results in (
        (EVALUATIONS, 2, evaluations if isinstance(evaluations, list) else []),
        (PREDICTIONS, 1, [report.get("predictions")]),
    ):
        for one in results:
            uri = one.get("uri") if isinstance(one, dict) else None
            names = uri.rstrip("/").split("/")[-num_names:] if isinstance(uri, str) else []
            # The run may lie elsewhere by now.
            if len(names) == num_names and not {"", ".", ".."} & set(names):
                yield "/".join((above, *names))
