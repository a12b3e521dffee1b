"""`evertrain check`: what would go wrong, before anything is trained."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field
from pydantic_settings import CliPositionalArg

from evertrain_flows.cli.output.listings import DIFFERENT, print_mapping
from evertrain_flows.cli.output.terminal import say
from train_core.config import TrainConfig, WorkloadName
from train_core.inside import users_code_in_command
from train_core.policy.findings import FindingName
from train_core.quick_imports import garbage_collection_paused
from train_core.requests import with_accepted


class CheckCommand(BaseModel):
    """Rehearse a workload: a few samples are trained, restored and measured, in a second.

    Two steps of the engine are compared with plain PyTorch on one and on two shards; the state is
    saved, restored and compared; rates, metrics, the loss and predictions are looked at. The exit
    code is 0 if nothing is refused, 1 if something is.
    """

    workload: CliPositionalArg[WorkloadName] = Field(
        description="The workload to rehearse, as package.module:Name."
    )
    settings: dict[str, Any] = Field(
        default_factory=dict, description="The workload's settings, a JSON object."
    )
    training: dict[str, Any] = Field(
        default_factory=dict,
        description="Further parameters of the training as `retrain` has them, a JSON object: "
        '{"precision": "bf16", "num_shards": 4}.',
    )
    accept: list[FindingName] = Field(
        default_factory=list,
        description="What may be found: gradients, loss, … as `retrain` has it.",
    )
    as_json: bool = Field(default=False, alias="json", description="Print JSON.")

    def cli_cmd(self) -> None:
        """Print what was tried and found; exit with code 1 if something is refused."""
        config = self._config()
        with users_code_in_command("check", self.workload):
            with garbage_collection_paused():
                from train_core.rehearsal.check import check_workload
            found = check_workload(with_accepted(config))
        is_refused = any(one.is_refused for one in found.findings if one.name not in found.accepted)
        if self.as_json:
            print_mapping(found.model_dump(mode="json"), as_json=True)
        else:
            say(f"tried      {', '.join(found.tried) or 'nothing'} ({found.cpu_s:.1f} CPU seconds)")
            for line in found.left_out:
                say(f"left out   {line}")
            for one in found.findings:
                kind = "refused" if one.is_refused else "notice"
                kind = "accepted" if one.name in found.accepted else kind
                say(f"{kind:<10} {one.name}: {one.message}")
            if not found.findings and not found.left_out:
                say("found      nothing wrong in three steps; verify-resume proves more")
        if is_refused:
            raise SystemExit(DIFFERENT)

    def _config(self) -> TrainConfig:
        # On two shards at least: on one, gradients are autograd's own.
        num_workers = self.training.get("num_workers", 1)
        fewest = max(2, num_workers) if isinstance(num_workers, int) else 2
        asked = (
            {"num_shards": fewest}
            | self.training
            | ({"accept": self.accept} if self.accept else {})
        )
        return TrainConfig.of(**asked | {"workload": self.workload, "settings": self.settings})
