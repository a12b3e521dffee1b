"""The training of a run in a tracker: its curves, its checkpoints, and their models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from train_core.errors import CheckpointError
from train_core.policy.end_status import EndStatus
from train_core.storage.records.journal import Entry, read_good_segments
from train_core.storage.records.names import SegmentName
from train_core.storage.run_folder import Commit
from train_core.tracking.journal_points import (
    POSITION_TAG,
    Counters,
    Position,
    points_after,
)
from train_core.tracking.show_models import show_models
from train_core.tracking.shown_run import ShownRun
from train_core.tracking.tracker import Points

_CURVES_OF = "evertrain.curves_of"
"""The digest of the last checkpoint whose curves were drawn."""


class ShownTraining:
    """Shows a training, and remembers which commits and entries of the journal it has sent."""

    def __init__(self, shown: ShownRun) -> None:
        self._shown = shown
        self._is_complete = False
        self._commits: set[str] | None = None
        """The names of the commits that were sent; None: not even that there are none."""
        self._counters = Counters()
        self._reached = Position()
        """How far the journal was sent."""

    def follow(self) -> bool:
        """Send what the tracker does not have, if there is a new commit.

        Returns whether the training's last checkpoint was sent.
        """
        committed = self._shown.folder.committed_names(self._commits or ())
        if self._commits is None or not committed <= self._commits:
            self._is_complete = self._show()
            self._commits = committed
        return self._is_complete

    def _show(self) -> bool:
        """Send what the newest checkpoint covers; return whether the training is done."""
        shown, folder = self._shown, self._shown.folder
        checkpoints = folder.checkpoints()
        is_finished = bool(checkpoints) and checkpoints[-1].manifest.is_last
        known = shown.open("train", is_running=not is_finished)
        if not checkpoints:
            return False
        newest = checkpoints[-1]
        position = max(Position.parse(known.tags.get(POSITION_TAG, "")), self._reached)
        since = min(position.step, self._counters.position.step)
        segments = [file for file in newest.manifest.journal if _last_step(file.name) >= since]
        entries = read_good_segments(folder.store, segments, is_final=is_finished)
        self._send_entries(entries, position)
        listed = [folder.summary(one).model_dump(mode="json") for one in checkpoints]
        with shown.refusals.passing("the list of checkpoints"):
            shown.keep_json("train", "checkpoints.json", {"checkpoints": listed})
            if quarantined := folder.quarantined():
                names = ", ".join(sorted(quarantined))
                shown.tracker.tags("train", {"evertrain.quarantined": names})
                shown.keep_json("train", "quarantined.json", quarantined)
        if is_finished:
            if known.tags.get(_CURVES_OF) != newest.digest:
                with shown.refusals.passing("the curves"):
                    self._show_curves(newest)
            shown.close("train", EndStatus.FINISHED)
        with shown.refusals.passing("the models of the checkpoints"):
            show_models(shown, checkpoints, is_finished=is_finished)
        return is_finished

    def _send_entries(self, entries: Iterable[Entry], after: Position) -> None:
        """Send the entries after a position; its tag stays before what the tracker refused."""
        reached = after

        def batches() -> Iterator[Points]:
            nonlocal reached
            for points, position in points_after(entries, after, self._counters):
                yield points
                reached = position

        with self._shown.refusals.passing("the curves' points"):
            self._shown.tracker.metrics("train", batches())
        self._reached = reached

    def _show_curves(self, newest: Commit) -> None:
        from train_core.tracking.pictures import training_figures

        figures = training_figures(self._shown.folder.store, newest)
        self._shown.keep_figures("train", figures, {_CURVES_OF: newest.digest})


def _last_step(segment: str) -> int:
    name = SegmentName.parse(segment)
    if name is None:
        raise CheckpointError(f"{segment!r} is not the name of a journal segment")
    return name.last_step
