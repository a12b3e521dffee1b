"""A loop that journals ten metrics a step and commits each second, as a rank does.

It creates the run, and begins when there is a file `go` in its folder, so that whoever mirrors it
is up. Its steps are computation on one thread. It prints their seconds as a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise

import torch

from tests.tracking.run_builder import RunBuilder
from train_core.policy.metric_names import SAMPLES_PER_S, TRAIN_LOSS
from train_core.rank.checkpoint.journal_buffer import JournalBuffer
from train_core.storage.records.journal import Entry
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import RunWriter

METRICS_PER_STEP = 10
COMMIT_EVERY_S = 1.0
WARM_UP_STEPS = 50
GO = "go"


def metrics_of_step(step: int) -> dict[str, float]:
    """Nine metrics; the rate is the tenth."""
    found = {f"train/metric_{number}": step / number for number in range(1, METRICS_PER_STEP - 1)}
    return {TRAIN_LOSS: 1 / step, **found}


class Committer:
    """Commits the journal in a thread of its own; at most one commit is in flight."""

    def __init__(self, builder: RunBuilder, journal: JournalBuffer) -> None:
        self._builder, self._journal = builder, journal
        self._thread = ThreadPoolExecutor(1)
        self._in_flight: tuple[Future[None], list[Entry]] | None = None
        self._committed_at = time.monotonic()

    def after_step(self) -> None:
        """Begin a commit if one is due and none is in flight."""
        if self._in_flight and self._in_flight[0].done():
            self.wait()
        if self._in_flight is None and time.monotonic() - self._committed_at > COMMIT_EVERY_S:
            self.commit(finished=False)

    def commit(self, *, finished: bool) -> None:
        """Begin to commit all entries so far."""
        self._committed_at, entries = time.monotonic(), list(self._journal.pending)
        self._in_flight = (self._thread.submit(self._commit, entries, finished), entries)

    def wait(self) -> None:
        """Wait for the commit in flight, and forget what it covers."""
        if self._in_flight:
            future, entries = self._in_flight
            future.result()
            self._journal.forget(entries)
            self._in_flight = None

    def close(self) -> None:
        """Commit the rest, as the last checkpoint, and end the thread."""
        self.wait()
        self.commit(finished=True)
        self.wait()
        self._thread.shutdown()

    def _commit(self, entries: list[Entry], finished: bool) -> None:
        steps = range(entries[0].step, entries[-1].step + 1)
        self._builder.commit(steps, entries=entries, finished=finished, validated=finished)


def main() -> None:
    """Do the steps."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("storage")
    parser.add_argument("run")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--size", type=int, default=384, help="of the matrices that are multiplied")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    folder = RunFolder(asked.storage, asked.run)
    builder = RunBuilder(folder)
    journal = JournalBuffer(RunWriter(folder, builder.lease.attempt), shows_live=True)
    committer = Committer(builder, journal)
    journal.start()
    while not folder.store.exists(GO):
        time.sleep(0.05)
    a, b = torch.rand(2, asked.size, asked.size)
    ended = []
    for step in range(1, asked.steps + WARM_UP_STEPS + 1):
        for _ in range(8):
            b = torch.relu(a @ b) / asked.size
        journal.add(step, metrics_of_step(step), {SAMPLES_PER_S: 100.0})
        journal.show(step=step)
        committer.after_step()
        ended.append(time.perf_counter())
    measured = ended[WARM_UP_STEPS:]
    spent = [after - before for before, after in pairwise(measured)]
    committer.close()
    journal.close()
    builder.lease.release()
    figures = {"total_s": measured[-1] - measured[0], "median_s": statistics.median(spent)}
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
