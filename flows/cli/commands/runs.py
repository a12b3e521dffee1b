"""`evertrain runs`: list runs, show, resume, stop, extend, fork and delete one."""

from __future__ import annotations

from pydantic import BaseModel, Field
from pydantic_settings import CliApp, CliPositionalArg, CliSubCommand

from evertrain_flows.cli.arguments import InStorage
from evertrain_flows.cli.output.listings import print_mapping
from evertrain_flows.cli.output.run_views import print_runs, status_shown
from evertrain_flows.cli.output.terminal import agrees, say
from evertrain_flows.defaults import tracking_uri_of
from evertrain_flows.parameters import RetrainParameters
from train_core.client.runs import (
    delete_run,
    epochs_after,
    fork_run,
    open_run,
    refuse_champion,
    refuse_driven,
    stop_run,
)
from train_core.errors import ConfigError
from train_core.storage.addresses import absolute
from train_core.storage.run_checks import check_no_link


class ListCommand(InStorage):
    """List the runs of a storage."""

    trials: bool = Field(default=False, description="List each trial of a search.")
    as_json: bool = Field(default=False, alias="json", description="Print JSON.")

    def cli_cmd(self) -> None:
        """Print the runs."""
        print_runs(absolute(self.storage), as_json=self.as_json, has_trials=self.trials)


class StatusCommand(InStorage):
    """Show a run's state and progress."""

    run: CliPositionalArg[str] = Field(description="The run's name.")
    as_json: bool = Field(default=False, alias="json", description="Print JSON.")

    def cli_cmd(self) -> None:
        """Print the run's state."""
        folder = open_run(absolute(self.storage), self.run).folder
        print_mapping(status_shown(folder, as_json=self.as_json), as_json=self.as_json)


class DeleteCommand(InStorage):
    """Delete a run: its folder, and its runs and models in MLflow."""

    run: CliPositionalArg[str] = Field(description="The run's name.")
    tracking_uri: str | None = Field(
        default=None,
        description="MLflow's address. Unset: the run's own, MLFLOW_TRACKING_URI, or "
        ".evertrain/mlflow.db; empty: leave MLflow alone.",
    )
    yes: bool = Field(default=False, description="Do not ask.")

    def cli_cmd(self) -> None:
        """Delete the run, MLflow's side first, so that a failure can be tried again."""
        folder = open_run(absolute(self.storage), self.run).folder
        check_no_link(folder)
        refuse_driven(folder)
        refuse_champion(folder)
        if not self.yes and not agrees(f"Delete {folder.url}?"):
            raise ConfigError("nothing was deleted; with --yes the command does not ask")
        delete_run(folder, tracking_uri_of(folder, self.tracking_uri))
        say(f"deleted {folder.url}")


class ResumeCommand(InStorage):
    """Continue a run from its last commit, with the parameters that were given last."""

    run: CliPositionalArg[str] = Field(description="The run's name.")
    verbose: bool = Field(default=False, description="Show Prefect's, Ray's and the workers' log.")

    def cli_cmd(self) -> None:
        """Run the pipeline to its end."""
        from evertrain_flows.cli.run_pipeline import run_pipeline

        folder = open_run(absolute(self.storage), self.run).folder
        run_pipeline(RetrainParameters.of_run(folder), verbose=self.verbose)


class StopCommand(InStorage):
    """Ask the driver of a run, on any machine, to save and end."""

    run: CliPositionalArg[str] = Field(description="The run's name.")

    def cli_cmd(self) -> None:
        """Store the request; the driver polls for it about once a second."""
        folder = open_run(absolute(self.storage), self.run).folder
        holder = stop_run(folder, reason="evertrain runs stop")
        say(f"{holder} is asked to save and to stop run {self.run}")


class ExtendCommand(InStorage):
    """Train a run for more epochs, at the last rate of its learning-rate schedule."""

    run: CliPositionalArg[str] = Field(description="The run's name.")
    epochs: str = Field(
        description="Epochs in all, as `20`, or more than it has, as `+5`.",
        pattern=r"^\+?[1-9]\d{0,8}$",
    )
    verbose: bool = Field(default=False, description="Show Prefect's, Ray's and the workers' log.")

    def cli_cmd(self) -> None:
        """Run the pipeline to the new end."""
        from evertrain_flows.cli.run_pipeline import run_pipeline

        folder = open_run(absolute(self.storage), self.run).folder
        epochs = epochs_after(folder, self.epochs)
        run_pipeline(RetrainParameters.of_run(folder, epochs=epochs), verbose=self.verbose)


class ForkCommand(InStorage):
    """Begin a new run from a checkpoint of another; it goes on exactly as that run did."""

    run: CliPositionalArg[str] = Field(description="The run's name.")
    at: int = Field(ge=0, description="The step of the checkpoint to begin from.")
    to: str = Field(default="", description="The new run's name; empty: RUN-at-STEP.")

    def cli_cmd(self) -> None:
        """Copy the checkpoint and its journal."""
        folder = open_run(absolute(self.storage), self.run).folder
        fork = fork_run(folder, self.at, self.to)
        say(f"{fork.url} begins after step {self.at}; `evertrain runs resume {fork.name}` goes on")


class RunsCommand(BaseModel):
    """List, show, resume, stop, extend, fork and delete runs."""

    list: CliSubCommand[ListCommand] = Field(description="List the runs of a storage.")
    status: CliSubCommand[StatusCommand] = Field(description="Show a run's state and progress.")
    resume: CliSubCommand[ResumeCommand] = Field(description="Continue a run.")
    stop: CliSubCommand[StopCommand] = Field(description="Ask a run to save and end.")
    extend: CliSubCommand[ExtendCommand] = Field(description="Train a run for more epochs.")
    fork: CliSubCommand[ForkCommand] = Field(description="Begin a run from another's checkpoint.")
    delete: CliSubCommand[DeleteCommand] = Field(description="Delete a run.")

    def cli_cmd(self) -> None:
        """Run the command that was named."""
        CliApp.run_subcommand(self)
