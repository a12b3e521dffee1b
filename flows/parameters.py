"""The parameters of the retrain flow: the training's, and its name, storage and tracking.

A parameter of the training goes into a group of `train_core/config/__init__.py`: the command line,
the flow and the deployment inherit it. Here are the pipeline's parameters only.
"""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import Any, Self

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer

from evertrain_flows.defaults import default_storage, default_tracking_uri
from train_core.config import TrainConfig
from train_core.config.json_text import with_numbers
from train_core.policy.champion.gate_options import GateOptions
from train_core.policy.logins import hide_secrets
from train_core.requests import (
    DEFAULT_EXPERIMENT,
    DriverRequest,
    KeptColumns,
    MirrorWeights,
    PipelineRequest,
    with_accepted,
)
from train_core.storage.addresses import absolute
from train_core.storage.records.names import default_run_name
from train_core.storage.run_folder import RunFolder
from train_core.text.shown_text import without_secrets


def new_run_name(workload: str) -> str:
    """A name for a new run: the workload's, the UTC time and something random."""
    return default_run_name(workload, datetime.now(UTC), secrets.token_hex())


def recorded_parameters(folder: RunFolder) -> dict[str, Any]:
    """The newest parameters that the run's folder records, by their names."""
    asked = folder.newest_request()
    # A function is named once: its name as a workload would stand beside that of another function.
    config = asked.config.model_dump(exclude=set() if asked.config.has_workload else {"workload"})
    requested = asked.requested.model_dump(exclude_unset=True)
    # A run that was begun without a gate is continued without one.
    gate = requested.pop("gate", None) or {"gate": False}
    keeps = KeptColumns.model_validate(requested.pop("infer_keeps", None) or {})
    return {
        **config,
        **requested,
        **gate,
        "infer_id_column": keeps.id_column,
        "infer_columns": list(keeps.columns),
        "run": folder.name,
        "storage": folder.storage,
    }


class RetrainParameters(GateOptions, TrainConfig):
    """The retrain flow's parameters: of the training, of the gate and of the pipeline."""

    run: str = Field(
        default="",
        description="Name of the run; a run that exists is continued; empty: a new run.",
    )
    storage: str = Field(
        default_factory=default_storage,
        description="Folder of the runs, a path or any fsspec URL. Unset: EVERTRAIN_STORAGE, or "
        ".evertrain/runs.",
    )
    tracking_uri: str | None = Field(
        default=None,
        description="MLflow's address. Unset: MLFLOW_TRACKING_URI, or .evertrain/mlflow.db; empty: "
        "no MLflow.",
    )
    experiment: str = Field(
        default=DEFAULT_EXPERIMENT, min_length=1, description="MLflow's experiment."
    )
    mirror_weights: MirrorWeights = Field(
        default="best",
        description="Whose weights MLflow gets a copy of: the best checkpoint's, those of all that "
        "are kept, or none. The models of the others refer to their checkpoints.",
    )
    infer_input: str = Field(
        default="test",
        min_length=1,
        description="Data that the best checkpoint scores: a split's name, or the path or URL of "
        "Parquet, image or IDX files.",
    )
    infer_id_column: str = Field(
        default="",
        description="The column of infer_input whose values are the predictions' ids. Unset: `id` "
        "if there is one, else file and row.",
    )
    infer_columns: list[str] = Field(
        default=[], description="Columns of infer_input that are stored beside the predictions."
    )
    skip_unchanged: bool = Field(
        default=False,
        description="Train only if something has changed since the last finished run of the "
        "workload in that storage: data, settings, configuration, code or library versions. A run "
        "that exists is always continued.",
    )
    dry_run: bool = Field(
        default=False, description="Try the pipeline: one step through every stage."
    )

    @field_validator("storage")
    @classmethod
    def _make_absolute(cls, storage: str) -> str:
        if not storage:
            raise ValueError("give a path or a URL, or leave storage out")
        if without_secrets(storage) != storage:
            raise ValueError(
                "an address with a password would be shown with the parameters: leave it out, and "
                "give the storage's client its credentials in the environment"
            )
        return absolute(storage)

    @field_validator("runtime_env")
    @classmethod
    def _make_code_absolute(cls, runtime_env: dict[str, Any]) -> dict[str, Any]:
        """The run may be continued from another directory."""
        made = dict(runtime_env)
        if isinstance(made.get("working_dir"), str):
            made["working_dir"] = absolute(made["working_dir"])
        if "py_modules" in made:
            made["py_modules"] = [absolute(module) for module in made["py_modules"]]
        return made

    @field_validator("tracking_uri")
    @classmethod
    def _refuse_login(cls, tracking_uri: str | None) -> str | None:
        if tracking_uri and without_secrets(tracking_uri) != tracking_uri:
            raise ValueError(
                "an address with a password would be shown with the parameters: leave it out here "
                "and set MLFLOW_TRACKING_URI"
            )
        return tracking_uri

    @model_serializer(mode="wrap", when_used="json")
    def _without_secrets(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """As JSON they are Prefect's, which shows them; this process goes on with the whole."""
        shown: dict[str, Any] = hide_secrets(dump(self))
        if variables := shown["runtime_env"].get("env_vars"):
            shown["runtime_env"]["env_vars"] = dict.fromkeys(variables, "***")
        return shown

    def tracked_at(self) -> str:
        """MLflow's address, the environment's if the parameter is not set; empty: no MLflow."""
        return default_tracking_uri() if self.tracking_uri is None else self.tracking_uri

    def named(self, run: str) -> Self:
        """The same parameters under the run's name `run`, unless they have a name already."""
        return self if self.run else self.model_copy(update={"run": run})

    def of_deployment(self) -> Self:
        """The parameters as a deployment means them, whose prefect.yaml Prefect reads as YAML 1.1.

        Each text in `train_loop_config` that is a number with an exponent is that number. The
        settings of a workload have types, which do the same.
        """
        return self.model_copy(update={"train_loop_config": with_numbers(self.train_loop_config)})

    @classmethod
    def of_run(cls, folder: RunFolder, **changes: Any) -> Self:
        """The newest parameters that the run's folder records, with `changes`."""
        return cls(**recorded_parameters(folder) | changes)

    def train_config(self) -> TrainConfig:
        """The training's part."""
        return self.part(TrainConfig)

    def gate_options(self) -> GateOptions | None:
        """The gate's part; None if there is to be none, or nothing that could be compared."""
        # A workload's dry run trains a step, and a function's does nothing but these checks.
        is_first_step = self.dry_run and self.trainable.trains_in_dry_run
        if not self.gate or not self.has_workload or is_first_step:
            return None
        return self.part(GateOptions)

    def _infer_keeps(self) -> KeptColumns | None:
        keeps = KeptColumns(id_column=self.infer_id_column, columns=tuple(self.infer_columns))
        return keeps if keeps.names else None

    def request(self, flow_run: str = "") -> DriverRequest:
        """The request that the driver is started with. The run must have a name.

        `flow_run` is the id of the flow run that the run is named after; empty: after none.
        """
        return DriverRequest(
            storage=self.storage,
            run=self.run,
            flow_run=flow_run,
            config=with_accepted(self.train_config()),
            pipeline=PipelineRequest(
                infer_input=self.infer_input,
                infer_keeps=self._infer_keeps(),
                gate=self.gate_options(),
            ),
            tracking_uri=self.tracked_at(),
            records_tracking_uri=self.tracking_uri is not None,
            experiment=self.experiment,
            mirror_weights=self.mirror_weights,
            dry_run=self.dry_run,
            skip_unchanged=self.skip_unchanged,
        )
