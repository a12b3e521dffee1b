"""`evertrain mirror`: bring MLflow up to date with a run folder."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import CliPositionalArg

from flows.commands.output import print_mapping
from flows.commands.runs import InStorage, existing
from flows.parameters import absolute, default_tracking_uri, make_tracking_folder
from train_core.errands import mirror_run


class MirrorCommand(InStorage):
    """Send MLflow what it lacks of a run that nobody drives; what it has is not sent again."""

    run: CliPositionalArg[str] = Field(description="The run's name.")
    tracking_uri: str = Field(
        default_factory=default_tracking_uri,
        description="MLflow's address; MLFLOW_TRACKING_URI, or .evertrain/mlflow.db.",
    )
    as_json: bool = Field(default=False, alias="json", description="Print JSON.")

    def cli_cmd(self) -> None:
        """Mirror the run, and print where MLflow shows it."""
        folder = existing(absolute(self.storage), self.run)
        make_tracking_folder(self.tracking_uri)
        found = mirror_run(folder, self.tracking_uri)
        print_mapping(found.model_dump(), as_json=self.as_json)
