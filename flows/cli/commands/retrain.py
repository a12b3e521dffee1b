"""`evertrain retrain` and `evertrain demo`."""

from __future__ import annotations

import re

from pydantic import BaseModel, Field

from flows.defaults import default_storage
from flows.parameters import RetrainParameters
from train_core.config import available_cpus
from train_core.storage.objects.store import Store
from train_core.storage.run_folder import RunFolder

_DEMO = re.compile(r"demo-(\d{3,})")


class RetrainCommand(RetrainParameters):
    """Train, choose the best checkpoint, report it on test and score data with it."""

    config: str = Field(
        default="", description="YAML or JSON file of these parameters; flags override it."
    )
    verbose: bool = Field(default=False, description="Show Prefect's, Ray's and the workers' log.")

    def cli_cmd(self) -> None:
        """Run the pipeline."""
        # Imported late: other commands need no driver.
        from flows.cli.run_pipeline import run_pipeline

        names = RetrainParameters.model_fields
        parameters = RetrainParameters(**{name: getattr(self, name) for name in names})
        run_pipeline(parameters, verbose=self.verbose)


class DemoCommand(BaseModel):
    """Retrain a small network on handwritten digits; a demo that was killed is continued."""

    verbose: bool = Field(default=False, description="Show Prefect's, Ray's and the workers' log.")

    def cli_cmd(self) -> None:
        """Run the pipeline."""
        from flows.cli.run_pipeline import run_pipeline

        run_pipeline(demo_parameters(default_storage()), verbose=self.verbose)


def demo_parameters(storage: str) -> RetrainParameters:
    """The last demo in `storage` if it has no report, as it was recorded, else a new one."""
    found = (_DEMO.fullmatch(name) for name in Store(storage).names())
    last = max((int(match[1]) for match in found if match), default=0)
    folder = RunFolder(storage, f"demo-{last:03d}")
    if last and folder.report() is None:
        if not folder.exists():
            return _new_demo(storage, folder.name)
        return RetrainParameters.of_run(folder)
    return _new_demo(storage, f"demo-{last + 1:03d}")


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
