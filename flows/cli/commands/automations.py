"""`evertrain automations`: create or update Prefect's automations, and their blocks, from files."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings, CliPositionalArg

from evertrain_flows.cli.output.terminal import say
from evertrain_flows.cli.prefect_server import asking_named_server


class AutomationsCommand(BaseSettings):
    """Create the automations of files on the server at PREFECT_API_URL; those there are updated."""

    files: CliPositionalArg[list[str]] = Field(
        description="YAML files, such as deployments/automations.yaml."
    )

    def cli_cmd(self) -> None:
        """Apply the files one by one, and print what was done.

        Raises ConfigError if no server is named, and StageError if it does not answer.
        """
        # Imported late, as it loads Prefect.
        from evertrain_flows.automations import apply_file

        with asking_named_server("automations"):
            for file in self.files:
                say(*apply_file(file))
