"""`evertrain workloads`: the shipped workloads, and the settings of one."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, Field, field_validator
from pydantic_settings import CliPositionalArg

from evertrain_flows.cli.output.listings import print_mapping, print_rows
from train_core.config.training_options import check_name
from train_core.inside import users_code_in_command
from train_core.quick_imports import garbage_collection_paused

SHIPPED = {
    "train_core.workloads.digits:Digits": "Handwritten digits of scikit-learn; no download.",
    "train_core.workloads.mnist:MnistResNet18": "ResNet-18 on MNIST, from IDX files at any URL.",
}


class WorkloadsCommand(BaseModel):
    """List the workloads that evertrain ships, or the settings of one."""

    name: CliPositionalArg[str] = Field(default="", description="A workload, package.module:Name.")
    as_json: bool = Field(default=False, alias="json", description="Print JSON.")

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        return str(check_name(name)) if name else ""

    def cli_cmd(self) -> None:
        """Print the list or the settings."""
        if not self.name:
            rows = [{"workload": name, "what": what} for name, what in SHIPPED.items()]
            print_rows(rows, as_json=self.as_json, empty="")
            return
        with users_code_in_command("workloads", self.name):
            with garbage_collection_paused():
                from train_core.loading import workload_class
            schema = workload_class(self.name).Settings.model_json_schema()
        if self.as_json:
            print_mapping(schema, as_json=True)
        else:
            empty = f"{self.name} has no settings"
            print_rows(setting_rows(schema), as_json=False, empty=empty)


def setting_rows(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each property of a settings' JSON schema."""
    required = schema.get("required", [])
    return [
        {
            "setting": name,
            "type": _type(one),
            "default": "required" if name in required else json.dumps(one.get("default")),
            "what": one.get("description", ""),
        }
        for name, one in schema.get("properties", {}).items()
    ]


def _type(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema["enum"])
    if "anyOf" in schema:
        return " | ".join(_type(one) for one in schema["anyOf"])
    return str(schema.get("type", "object"))
