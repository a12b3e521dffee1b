"""`evertrain ls`, `show` and `verify`: what is in a storage, a run, a checkpoint."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from pydantic import BaseModel, Field
from pydantic_settings import CliPositionalArg
from rich.console import Console
from rich.progress import track

from flows.cli.arguments import InStorage
from flows.cli.commands.runs import print_runs, status_shown
from flows.cli.output import Row, print_mapping, print_rows
from flows.defaults import default_storage
from train_core.client.runs import verify_run
from train_core.errors import CheckpointError, ConfigError
from train_core.storage.addresses import absolute, find, named, run_at
from train_core.storage.objects.store import Store
from train_core.storage.run_folder import Checkpoint, RunFolder


class LsCommand(BaseModel):
    """List the runs of a storage, or the checkpoints of a run."""

    url: CliPositionalArg[str] = Field(
        default_factory=default_storage,
        description="A storage's or a run's path or URL, or the name of a run.",
    )
    as_json: bool = Field(default=False, alias="json", description="Print JSON.")

    def cli_cmd(self) -> None:
        """Print the list."""
        url = absolute(self.url).rstrip("/")
        folder = run_at(url)
        if folder is None and not Store(url).names():
            folder = _run_named(self.url)
        if folder is None:
            if url != default_storage() and not Store(url).names():
                raise ConfigError(f"there is nothing at {url}: give a storage's or a run's address")
            print_runs(url, as_json=self.as_json)
        else:
            rows = [checkpoint_row(folder, one) for one in folder.checkpoints()]
            print_rows(rows, as_json=self.as_json, empty=f"no checkpoints in {folder.url}")


def _run_named(name: str) -> RunFolder | None:
    """The run of that name in the storage of this machine's settings, if there is one."""
    with suppress(ConfigError):  # what can be no run's name
        found = RunFolder(default_storage(), name)
        return found if found.exists() else None
    return None


class LookAt(InStorage):
    """Arguments of the commands that look at a run or at one of its checkpoints."""

    what: CliPositionalArg[str] = Field(
        description="A run's name, RUN/CHECKPOINT, or the path or URL of either."
    )
    as_json: bool = Field(default=False, alias="json", description="Print JSON.")


class ShowCommand(LookAt):
    """Show a run's request and state, or a checkpoint's manifest, files and metrics."""

    def cli_cmd(self) -> None:
        """Print what was found."""
        folder, name = find(self.what, absolute(self.storage))
        if name is None:
            print_mapping(
                status_shown(folder, as_json=self.as_json)
                | folder.record().model_dump(mode="json")
                | folder.asked().model_dump(mode="json"),
                as_json=self.as_json,
            )
            return
        show_checkpoint(folder, named(folder, name), as_json=self.as_json)


class VerifyCommand(LookAt):
    """Read every file of a run's checkpoints, or of one, and compare it with what was committed."""

    def cli_cmd(self) -> None:
        """Print the verdicts. Raises CheckpointError if one is bad."""
        folder, name = find(self.what, absolute(self.storage))
        console = Console(stderr=True, quiet=self.as_json)
        total = len(folder.checkpoints()) if name is None else 1
        checked = track(verify_run(folder, name), "verifying", total=total, console=console)
        verdicts = list(checked)
        bad = sum(bool(one.faults) for one in verdicts)
        rows: list[Row] = [
            one.model_dump(exclude={"faults"}, exclude_unset=True)
            | {"verdict": "; ".join(one.faults) or "good"}
            for one in verdicts
        ]
        if name is not None and not rows:
            named(folder, name)  # raises what is wrong with it
        print_rows(rows, as_json=self.as_json, empty=f"no checkpoints in {folder.url}")
        if bad:
            raise CheckpointError(
                f"{bad} of {len(rows)} checkpoints of {folder.url} are not what was committed: who "
                "goes on with the run begins with the newest good one, and warns"
            )


def checkpoint_row(folder: RunFolder, checkpoint: Checkpoint) -> Row:
    """A checkpoint in a list."""
    manifest = checkpoint.manifest
    return {
        "checkpoint": str(checkpoint.name),
        "step": checkpoint.step,
        "epoch": manifest.epoch,
        "MB": round(sum(file.size_bytes for file in manifest.files) / 1e6, 3),
        **folder.summary(checkpoint).metrics,
    }


def show_checkpoint(folder: RunFolder, checkpoint: Checkpoint, *, as_json: bool) -> None:
    """Print the manifest: its facts, then its files."""
    manifest: dict[str, Any] = checkpoint.manifest.model_dump(mode="json")
    manifest["uri"] = folder.store.uri(checkpoint.key)
    if as_json:
        print_mapping(manifest, as_json=True)
        return
    files = manifest.pop("files")
    manifest["journal"] = f"{len(manifest['journal'])} segments"
    del manifest["metrics"]
    metrics = folder.summary(checkpoint).metrics
    print_mapping(manifest | metrics, as_json=False)
    print_rows(files, as_json=False, empty="no files")
