"""`evertrain retrain` and `evertrain demo`."""

from __future__ import annotations

from pydantic import BaseModel, Field

from evertrain_flows.defaults import default_storage
from evertrain_flows.parameters import RetrainParameters
from train_core.client.run_summaries import unfinished_or_next
from train_core.config import available_cpus


class RetrainCommand(RetrainParameters):
    """Train, choose the best checkpoint, report it on test and score data with it."""

    config: str = Field(
        default="", description="YAML or JSON file of these parameters; flags override it."
    )
    verbose: bool = Field(default=False, description="Show Prefect's, Ray's and the workers' log.")

    def cli_cmd(self) -> None:
        """Run the pipeline."""
        # Imported late: other commands need no driver.
        from evertrain_flows.cli.run_pipeline import run_pipeline

        run_pipeline(self.part(RetrainParameters), verbose=self.verbose)


class DemoCommand(BaseModel):
    """Retrain a small network on handwritten digits; a demo that was killed is continued."""

    verbose: bool = Field(default=False, description="Show Prefect's, Ray's and the workers' log.")

    def cli_cmd(self) -> None:
        """Run the pipeline."""
        from evertrain_flows.cli.run_pipeline import run_pipeline

        run_pipeline(demo_parameters(default_storage()), verbose=self.verbose)


def demo_parameters(storage: str) -> RetrainParameters:
    """The last demo in `storage` if it has no report, as it was recorded, else a new one."""
    folder = unfinished_or_next(storage, "demo")
    if folder.exists():
        return RetrainParameters.of_run(folder)
    return _new_demo(storage, folder.name)


def _new_demo(storage: str, run: str) -> RetrainParameters:
    return RetrainParameters(
        run=run,
        storage=storage,
        epochs=8,
        batch_size=64,
        num_workers=min(2, available_cpus()),
        keep_last=3,
        keep_best=3,
    )
