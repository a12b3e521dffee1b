"""`evertrain ui`: MLflow's and Prefect's pages for the runs of this machine."""

from __future__ import annotations

import os

from pydantic import BaseModel, Field

from evertrain_flows.cli.local_servers import (
    LocalServers,
    refuse_taken_port,
    refuse_unknown_database,
)
from evertrain_flows.cli.mlflow_page import page_of_runs
from evertrain_flows.cli.output.terminal import say
from evertrain_flows.defaults import default_tracking_uri


class UiCommand(BaseModel):
    """Start MLflow's and Prefect's servers and print their addresses; Ctrl-C ends both."""

    tracking_uri: str = Field(
        default_factory=default_tracking_uri,
        description="MLflow's address. Unset: MLFLOW_TRACKING_URI, or .evertrain/mlflow.db.",
    )
    mlflow_port: int = Field(default=5000, ge=1, le=65535, description="MLflow's port.")
    prefect_port: int = Field(default=4200, ge=1, le=65535, description="Prefect's port.")

    def cli_cmd(self) -> None:
        """Run the servers until Ctrl-C, or until one of them ends.

        Raises ConfigError if a port is taken: the pages there would be another program's; and if
        MLflow's database needs a driver that is missing. Raises StageError if a server ends.
        """
        starts_mlflow = not self.tracking_uri.startswith("http")
        starts_prefect = "PREFECT_API_URL" not in os.environ
        if starts_mlflow:
            refuse_unknown_database(self.tracking_uri)
            refuse_taken_port(self.mlflow_port, "--mlflow-port")
        if starts_prefect:
            refuse_taken_port(self.prefect_port, "--prefect-port")
        with LocalServers() as servers:
            if starts_mlflow:
                servers.start_mlflow(self.tracking_uri, self.mlflow_port)
            if starts_prefect:
                servers.start_prefect(self.prefect_port)
            if servers:
                say("starting …")
            servers.wait_until_up()
            say(f"MLflow:  {page_of_runs(self._mlflow_url())}")
            say(f"Prefect: {self._prefect_url()}")
            if servers:
                say("Ctrl-C ends both." if len(servers) > 1 else "Ctrl-C ends it.")
            servers.watch()

    def _mlflow_url(self) -> str:
        is_elsewhere = self.tracking_uri.startswith("http")
        return self.tracking_uri if is_elsewhere else f"http://127.0.0.1:{self.mlflow_port}"

    def _prefect_url(self) -> str:
        elsewhere = os.environ.get("PREFECT_API_URL", "").removesuffix("/api")
        return elsewhere or f"http://127.0.0.1:{self.prefect_port}"
