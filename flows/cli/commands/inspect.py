"""`evertrain ls`, `show` and `verify`: the content of a storage, a run, a checkpoint."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import CliPositionalArg

from evertrain_flows.cli.arguments import InStorage
from evertrain_flows.cli.output.listings import DIFFERENT, Row, print_mapping, print_rows
from evertrain_flows.cli.output.run_views import print_runs, status_shown
from evertrain_flows.cli.output.terminal import Screen, complain
from train_core.client.checkpoints import (
    ListedCheckpoint,
    checkpoint_facts,
    findings_in_short,
    list_checkpoints,
    run_or_storage,
    verify_run,
)
from train_core.storage.addresses import absolute, find, named
from train_core.storage.run_folder import Commit, RunFolder
from train_core.storage.verification.runs import Verdict


class LsCommand(InStorage):
    """List the runs of a storage, or the checkpoints of a run."""

    url: CliPositionalArg[str] = Field(
        default="",
        description="A storage's or a run's path or URL, or the name of a run; left out: the "
        "storage.",
    )
    as_json: bool = Field(default=False, alias="json", description="Print JSON.")

    def cli_cmd(self) -> None:
        """Print the list."""
        storage = absolute(self.storage)
        found = run_or_storage(self.url or storage, storage)
        if isinstance(found, str):
            print_runs(found, as_json=self.as_json)
            return
        rows = [checkpoint_row(one) for one in list_checkpoints(found)]
        print_rows(rows, as_json=self.as_json, empty=f"no checkpoints in {found.url}")


class Inspected(InStorage):
    """Arguments of the commands that inspect a run or one of its checkpoints."""

    what: CliPositionalArg[str] = Field(
        description="A run's name, RUN/CHECKPOINT, or the path or URL of either."
    )
    as_json: bool = Field(default=False, alias="json", description="Print JSON.")


class ShowCommand(Inspected):
    """Show a run's request and state, or a checkpoint's manifest, files and metrics."""

    def cli_cmd(self) -> None:
        """Print the run's or the checkpoint's facts."""
        folder, name = find(self.what, absolute(self.storage))
        if name is None:
            print_mapping(
                status_shown(folder, as_json=self.as_json)
                | folder.record().model_dump(mode="json")
                | folder.newest_request().model_dump(mode="json"),
                as_json=self.as_json,
            )
            return
        show_checkpoint(folder, named(folder, name), as_json=self.as_json)


class VerifyCommand(Inspected):
    """Read every byte of a run, or of one checkpoint, and compare it with what was committed."""

    def cli_cmd(self) -> None:
        """Print the verdicts. Ends with code 1, as a comparison does, if one is bad."""
        folder, name = find(self.what, absolute(self.storage))
        screen = Screen(to_stderr=True, quiet=self.as_json)
        verdicts = list(screen.following(verify_run(folder, name), "verifying"))
        if name is not None and not verdicts:
            named(folder, name)  # raises what is wrong with it
        rows = [row for one in verdicts for row in verdict_rows(one)]
        print_rows(rows, as_json=self.as_json, empty=f"nothing to verify in {folder.url}")
        if found := findings_in_short(verdicts, folder):
            complain(found)
            raise SystemExit(DIFFERENT)


def verdict_rows(verdict: Verdict) -> list[Row]:
    """The verdict on a part of a run: a row for each fault, or one that says that it is good."""
    facts = verdict.model_dump(exclude={"faults", "quarantined"}, exclude_none=True)
    good = "good"
    if verdict.quarantined is not None:
        good = f"good again: its quarantine is lifted (it was: {verdict.quarantined})"
    return [facts | {"verdict": one} for one in verdict.faults or [good]]


def checkpoint_row(listed: ListedCheckpoint) -> Row:
    """A checkpoint in a list."""
    facts: Row = {
        "checkpoint": listed.checkpoint,
        "step": listed.step,
        "epoch": listed.epoch,
        "MB": None if listed.size_bytes is None else round(listed.size_bytes / 1e6, 3),
    }
    if listed.reported_as:
        facts["reported as"] = listed.reported_as
    if listed.fault:
        facts["fault"] = listed.fault
    # A training function may report a metric of any name.
    return facts | listed.metrics | facts


def show_checkpoint(folder: RunFolder, checkpoint: Commit, *, as_json: bool) -> None:
    """Print the manifest: its facts, then its files."""
    manifest = checkpoint_facts(folder, checkpoint)
    if as_json:
        print_mapping(manifest, as_json=True)
        return
    files = manifest.pop("files")
    manifest["journal"] = f"{len(manifest['journal'])} segments"
    del manifest["metrics"]
    metrics = folder.summary(checkpoint).metrics
    print_mapping(manifest | metrics | manifest, as_json=False)
    print_rows(files, as_json=False, empty="no files")
