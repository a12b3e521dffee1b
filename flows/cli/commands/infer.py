"""`evertrain infer`."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import CliPositionalArg

from evertrain_flows.cli.arguments import InStorage
from train_core.requests import KeptColumns
from train_core.storage.addresses import absolute
from train_core.storage.records.names import LATEST


class InferCommand(InStorage):
    """Score data with a checkpoint of a run, or with a registered version."""

    infer_input: CliPositionalArg[str] = Field(
        alias="input",
        description="A split's name, or the path or URL of tables (Parquet, CSV, TSV, JSON lines), "
        "images or IDX files.",
    )
    run: str = Field(
        default=LATEST,
        description="A run, the newest finished one, or a version: models:/NAME@champion.",
    )
    checkpoint: str = Field(default="best", description="Its checkpoint, or the best one.")
    workload: str = Field(
        default="", description="`latest` is the newest run of this workload. Unset: of any."
    )
    output: str = Field(
        default="",
        description="An empty folder, a path or URL, to which the predictions are copied. Unset: "
        "they are in the run folder only.",
    )
    id_column: str = Field(
        default="",
        description="The column of the input whose values are the predictions' ids. Unset: `id` if "
        "there is one, else file and row.",
    )
    columns: list[str] = Field(
        default=[], description="Columns of the input that are stored beside the predictions."
    )
    ray_address: str = Field(
        default="", description="`local` or a running cluster. Unset: where the run was trained."
    )
    verbose: bool = Field(default=False, description="Show Prefect's, Ray's and the workers' log.")

    def cli_cmd(self) -> None:
        """Run the flow `batch-inference`."""
        # Imported late: other commands need no driver.
        from evertrain_flows.cli.run_inference import run_inference

        keeps = KeptColumns(id_column=self.id_column, columns=tuple(self.columns))
        run_inference(
            self.infer_input,
            storage=absolute(self.storage),
            run=self.run,
            checkpoint=self.checkpoint,
            workload=self.workload,
            keeps=keeps,
            output=self.output,
            ray_address=self.ray_address,
            verbose=self.verbose,
        )
