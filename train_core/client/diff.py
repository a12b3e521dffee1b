"""Two runs or two checkpoints, compared as `evertrain diff` does."""

from __future__ import annotations

from train_core.client.isolated import compare_checkpoints
from train_core.client.run_differences import RecordsComparison, compare_records
from train_core.differences import Comparison
from train_core.results import Result
from train_core.storage.addresses import find, find_checkpoint


class Diff(Result):
    """The differences between two runs, or between two checkpoints."""

    a: str
    """The address of the first checkpoint; of a run its best one, the newest without a report."""
    b: str
    checkpoints: Comparison
    records: RecordsComparison | None = None
    """Of two runs: configuration, data and surroundings."""
    newest: Comparison | None = None
    """Of two runs: their newest checkpoints, unless those are compared already."""

    @property
    def is_same(self) -> bool:
        """Whether there are no differences that count."""
        compared = (self.records, self.checkpoints, self.newest)
        return all(one.is_same for one in compared if one is not None)


def diff(a: str, b: str, storage: str) -> Diff:
    """Compare two runs, or two checkpoints to the bit: tensors, the rest of the state, metrics.

    `a` and `b` are names of runs in `storage`, RUN/CHECKPOINT, or addresses of either. Beside a
    checkpoint a run is its best one. Raises ConfigError if one is not there, CheckpointError if a
    checkpoint is not good.
    """
    folder_a, of_a = find_checkpoint(a, storage, prefer_best=True)
    folder_b, of_b = find_checkpoint(b, storage, prefer_best=True)
    are_runs = all(find(what, storage)[1] is None for what in (a, b))
    records = compare_records(folder_a, folder_b) if are_runs else None
    pairs = [(of_a, of_b)]
    if are_runs:
        newest_a, newest_b = folder_a.newest() or of_a, folder_b.newest() or of_b
        if (newest_a.name, newest_b.name) != (of_a.name, of_b.name):
            pairs.append((newest_a, newest_b))
    checkpoints, *newest = compare_checkpoints(folder_a, folder_b, *pairs)
    return Diff(
        a=folder_a.store.uri(of_a.key),
        b=folder_b.store.uri(of_b.key),
        checkpoints=checkpoints,
        records=records,
        newest=newest[0] if newest else None,
    )
