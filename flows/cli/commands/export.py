"""`evertrain export`: a checkpoint's weights as one plain file."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import CliPositionalArg

from evertrain_flows.cli.arguments import InStorage
from evertrain_flows.cli.output.listings import print_mapping
from train_core.client.checkpoints import export_weights
from train_core.storage.addresses import absolute, find_checkpoint


class ExportCommand(InStorage):
    """Write a checkpoint's verified weights as one plain safetensors file."""

    what: CliPositionalArg[str] = Field(
        description="RUN/CHECKPOINT, its path or URL, or a run: its report's best checkpoint, or "
        "its newest while there is no report."
    )
    target: CliPositionalArg[str] = Field(
        description="Path or URL of the file, or of a folder for model.safetensors if it does "
        "not end in .safetensors."
    )
    force: bool = Field(default=False, description="Overwrite an existing file.")
    as_json: bool = Field(default=False, alias="json", description="Print JSON.")

    def cli_cmd(self) -> None:
        """Print the written file's address, size and digest."""
        folder, checkpoint = find_checkpoint(self.what, absolute(self.storage), prefer_best=True)
        written = export_weights(folder, checkpoint, self.target, overwrite=self.force)
        print_mapping(written.model_dump(mode="json"), as_json=self.as_json)
