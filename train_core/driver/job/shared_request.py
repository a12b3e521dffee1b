"""The request of a job: all callers that attach to it have to ask for the same."""

from __future__ import annotations

from typing import Any

from train_core.driver.preparing.preflight import effective
from train_core.errors import RunBusyError
from train_core.rank.data.recorded_workload import with_defaults
from train_core.requests import DriverRequest, Request
from train_core.storage.run_checks import check_flow_run
from train_core.storage.run_folder import RunFolder

# Values that the run itself decided, and the address by which a caller reaches the cluster.
_MAY_DIFFER = {"ray_address", "runtime_env", "gpus_per_worker"}


def refuse_another(job: str, ours: Request, theirs: Request) -> None:
    """Raise RunBusyError, which names the job, if two requests want different things of the run.

    Raises ConfigError if the run is named after another flow run.
    """
    if isinstance(theirs, DriverRequest):
        check_flow_run(RunFolder(theirs.storage, theirs.run), theirs.flow_run)
    a, b = _decides(ours), _decides(theirs)
    if differing := sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name)):
        others = " and another ".join(differing)
        raise RunBusyError(theirs.run, f"job {job}, which was asked for another {others}")


def _decides(request: Request) -> dict[str, Any]:
    """All that two callers of a job have to agree on, by its name."""
    if not isinstance(request, DriverRequest):
        return {"request": request}
    config = with_defaults(effective(request)).without_logins().model_dump(exclude=_MAY_DIFFER)
    asked = {"experiment": request.experiment, "dry_run": request.dry_run}
    return {**config, **asked, "pipeline": request.pipeline}
