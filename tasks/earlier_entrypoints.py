"""Deployments of an earlier evertrain, whose entrypoints name the flows `flows.…`, run and say so.

Prefect imports this module twice, as pyproject.toml asks it to. `prefect worker start` imports
it as a collection: the worker's flow runs then load Prefect plugins. A flow run's process loads it
as a plugin, before Prefect imports the deployment's entrypoint.

Flow runs of other projects load it, too: it imports nothing that takes long, and is not in
`evertrain_flows`, whose import puts the folders of PYTHONPATH last.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING
from uuid import UUID

from prefect.logging.loggers import flow_run_logger
from prefect.plugins import register_hook
from prefect.settings import get_current_settings

if TYPE_CHECKING:
    from prefect.plugins import HookContext

_PACKAGE = "flows"
_FLOWS = ("retrain", "batch_inference", "mirror", "rollback")
_PLUGIN = "evertrain"
"""The name of the entry points in pyproject.toml."""
_FLOW_RUN_ID = "PREFECT__FLOW_RUN_ID"


class EarlierFlows(MetaPathFinder, Loader):
    """Finds the current flows under their earlier names, where nobody else has these names."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of an earlier module; None for any other."""
        package, _, name = fullname.partition(".")
        if package != _PACKAGE or (name and name not in _FLOWS):
            return None
        return ModuleSpec(fullname, self, is_package=not name)

    def exec_module(self, module: ModuleType) -> None:
        """Put the current module in the place of the earlier one, and warn."""
        name = module.__name__
        if name == _PACKAGE:
            return
        current = f"evertrain_{name}"
        flow = name.rpartition(".")[2]
        flow_run_logger(flow_run_id=UUID(os.environ[_FLOW_RUN_ID])).warning(
            "the deployment's entrypoint %s.%s is that of an earlier evertrain: write %s.%s in "
            "your prefect.yaml, and deploy again: prefect --no-prompt deploy --all",
            name,
            flow,
            current,
            flow,
        )
        sys.modules[name] = import_module(current)


@register_hook
def setup_environment(*, ctx: HookContext) -> None:  # noqa: ARG001 (Prefect passes it)
    """Have this process find earlier entrypoints, if it is that of a flow run."""
    if _FLOW_RUN_ID in os.environ:
        # Last: a project's own `flows` comes first.
        sys.meta_path.append(EarlierFlows())


def _enable_in_flow_runs() -> None:
    """Have the flow runs that this process starts load this plugin, and no other one.

    Changes nothing where somebody has switched Prefect's plugins on or off.
    """
    if "enabled" not in get_current_settings().plugins.model_fields_set:
        os.environ["PREFECT_PLUGINS_ENABLED"] = "true"
        os.environ.setdefault("PREFECT_PLUGINS_ALLOW", _PLUGIN)


# A collection is only imported.
_enable_in_flow_runs()
