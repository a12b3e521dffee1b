"""`evertrain mirror`: bring MLflow up to date with a run folder."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import CliPositionalArg

from evertrain_flows.cli.arguments import InStorage
from evertrain_flows.cli.output.listings import print_mapping
from evertrain_flows.databases import create_tracking_database
from evertrain_flows.defaults import tracking_uri_of
from train_core.client.isolated import mirror_run
from train_core.client.runs import open_run
from train_core.storage.addresses import absolute


class MirrorCommand(InStorage):
    """Send MLflow what it lacks of a run that nobody drives; what it has is not sent again."""

    run: CliPositionalArg[str] = Field(description="The run's name.")
    tracking_uri: str | None = Field(
        default=None,
        description="MLflow's address. Unset: the run's own, MLFLOW_TRACKING_URI, or "
        ".evertrain/mlflow.db.",
    )
    as_json: bool = Field(default=False, alias="json", description="Print JSON.")

    def cli_cmd(self) -> None:
        """Mirror the run, and print where MLflow shows it."""
        folder = open_run(absolute(self.storage), self.run).folder
        tracking_uri = tracking_uri_of(folder, self.tracking_uri)
        create_tracking_database(tracking_uri)
        tracking = mirror_run(folder, tracking_uri)
        print_mapping(tracking.model_dump(), as_json=self.as_json)
