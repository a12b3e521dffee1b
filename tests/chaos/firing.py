"""What became of one firing of a schedule, and whether its run and its records are right."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.chaos.growing import Growing, GrowingSettings, files_of
from tests.chaos.pipeline import unfinished
from tests.flows.mlflow_side import shown_at
from tests.rank import alone
from tests.rank.digests import digest_of_training
from train_core.datasets.protocols import SPLITS
from train_core.results import Report
from train_core.storage.coordination import lease
from train_core.storage.run_folder import RunFolder

STAGES = {"pipeline"}
"""What MLflow shows of every run, whatever other stages it has."""
NO_NEW_DATA = "no new data"
"""What a firing says that trained nothing, since nothing had changed."""


def moment(timestamp: str) -> float:
    """A timestamp of Prefect's or of run.json, in seconds since 1970."""
    return datetime.fromisoformat(timestamp).timestamp()


@dataclass
class Firing:
    """A flow run that the schedule made, with all states that it had."""

    flow_run: dict[str, Any]
    states: list[dict[str, Any]]
    storage: str
    data: Path
    """The folder that grew."""
    tracking_uri: str
    faults: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return str(self.flow_run["name"])

    @property
    def state_names(self) -> list[str]:
        return [str(state["name"]) for state in self.states]

    @property
    def trained(self) -> bool:
        return NO_NEW_DATA not in str(self.flow_run["state"]["message"]).lower()

    @cached_property
    def folder(self) -> RunFolder:
        return RunFolder(self.storage, self.name)

    @cached_property
    def num_files(self) -> int | None:
        """How many files, counted from the oldest, have the digests that run.json records."""
        recorded = {
            split: found["digest"] for split, found in self.folder.record().datasets.items()
        }
        for number in range(1, len(files_of(self.data)) + 1):
            with only_the_first(self.data, number) as folder:
                workload = Growing(GrowingSettings(data=str(folder)))
                if {split: workload.dataset(split).digest() for split in SPLITS} == recorded:
                    return number
        return None

    def check(self) -> None:
        """Find all that is wrong with it."""
        if self.state_names[-1] != "Completed":
            self.faults.append(f"it ended as {self.state_names[-1]}")
        elif self.trained:
            self.faults += [
                *self._wrong_records(),
                *self._wrong_numbers(),
                *self._wrong_in_mlflow(),
                *(f"left: {key}" for key in unfinished(self.folder)),
            ]
            if holder := lease.holder_of(self.folder.store):
                self.faults.append(f"left: the lease of {holder}")

    def _report(self) -> Report:
        report = self.folder.report()
        assert report is not None, f"{self.name} has no report.json"
        return Report.model_validate(report)

    def _wrong_records(self) -> Iterator[str]:
        if self.num_files is None:
            yield "run.json's digests are those of no files"
            return
        begun = next(moment(one["timestamp"]) for one in self.states if one["type"] == "RUNNING")
        prepared = moment(self.folder.record().created_at)
        arrived = [file.stat().st_mtime for file in files_of(self.data)]
        least, most = (sum(time < until for time in arrived) for until in (begun, prepared))
        if not least <= self.num_files <= most:
            yield f"recorded are {self.num_files} files; {least} to {most} were there"
        scored, samples = self._report().predictions.num_rows, self.folder.record().datasets["test"]
        if scored != samples["samples"]:
            yield f"scored were {scored} rows of test, recorded are {samples['samples']}"

    def _wrong_numbers(self) -> Iterator[str]:
        """Train the same, undisturbed, on the files that are recorded."""
        if self.num_files is None:
            return
        config = self.folder.record().config
        with (
            only_the_first(self.data, self.num_files) as data,
            tempfile.TemporaryDirectory() as storage,
        ):
            settings = GrowingSettings(data=str(data)).model_dump()
            undisturbed = RunFolder(storage, self.name)
            alone.run(undisturbed, **config.model_dump() | {"settings": settings})
            if digest_of_training(undisturbed) != digest_of_training(self.folder):
                yield "its training differs from an undisturbed one of the recorded files"

    def _wrong_in_mlflow(self) -> Iterator[str]:
        try:
            shown = shown_at(self.tracking_uri, self.folder.url)
        except AssertionError as error:
            # Two runs of one stage.
            yield f"MLflow shows {error}"
            return
        if not shown.keys() >= STAGES:
            yield f"MLflow shows {sorted(shown)} only"
        for stage, found in shown.items():
            if found["status"] != "FINISHED":
                yield f"MLflow shows {stage} as {found['status']}"
            for key, points in found["metrics"].items():
                if len({step for step, _ in points}) != len(points):
                    yield f"MLflow shows a step of {stage}'s {key} more than once"


class only_the_first(tempfile.TemporaryDirectory[str]):  # noqa: N801 (it is used as a function)
    """A folder with the first `number` files of another one."""

    def __init__(self, data: Path, number: int) -> None:
        super().__init__()
        for file in files_of(data)[:number]:
            shutil.copy(file, self.name)
