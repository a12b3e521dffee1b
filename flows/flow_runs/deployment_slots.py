"""Who holds the slots of the deployments that have a limit, and slots that nobody holds any more.

Prefect's server counts a deployment's slots in its database, and keeps who holds them in its memory
(unless it is told to keep that, too). A server that is killed forgets the holders and not the
count, so that a deployment with one slot begins no flow run any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from prefect import State
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.events.filters import EventFilter, EventNameFilter, EventResourceFilter
from prefect.exceptions import PrefectHTTPStatusError
from prefect.states import Cancelled, Crashed

from evertrain_flows.flow_runs.left_running import ended_state, folder_of
from evertrain_flows.timing import TIMING, Timing
from train_core.errors import EvertrainError, RunBusyError
from train_core.storage.coordination import lease
from train_core.storage.coordination.holder import Life

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.responses import DeploymentResponse

HEARTBEAT = "prefect.flow-run.heartbeat"
RENEWED_FOR_S = 300
"""Prefect's engine renews a flow run's lease for so long, and a look must not shorten it."""
_PAGE = 200
_GONE = 410
_HOLDS_SLOT = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
_DIED = "Its process died; `evertrain slots --free` has freed its slot."


@dataclass(frozen=True)
class SlotHolder:
    """A flow run whose state says that it has a slot of its deployment."""

    flow_run: FlowRun
    age_s: float
    """Since it has been in that state."""
    life: Life
    why: str
    end: str = ""
    """How its run has ended, if that is known."""

    @property
    def key(self) -> tuple[object, ...]:
        """What is the same at two looks while nothing happens."""
        return self.flow_run.id, self.flow_run.state_type, self.life


@dataclass(frozen=True)
class DeploymentSlots:
    """The slots of one deployment."""

    deployment: str
    limit_name: str
    limit: int
    active: int
    holders: tuple[SlotHolder, ...]

    @property
    def num_unheld(self) -> int:
        """How many of the active slots no flow run holds that lives, or may live."""
        num_held = sum(one.life is not Life.DEAD for one in self.holders)
        return max(0, self.active - num_held)

    def is_as(self, before: DeploymentSlots) -> bool:
        """Whether nothing has happened since an earlier look."""
        keys = ({one.key for one in slots.holders} for slots in (self, before))
        return self.active == before.active and next(keys) == next(keys)


def read_slots(client: SyncPrefectClient, timing: Timing = TIMING) -> list[DeploymentSlots]:
    """The slots of all deployments that have a limit, by name.

    The count is read before the flow runs: one that begins in between is a holder without a slot,
    which frees nothing.
    """
    found = []
    for deployment in _paged(client.read_deployments):
        limit = deployment.global_concurrency_limit
        if limit is None:
            continue
        flow = client.read_flow(deployment.flow_id).name
        held = _flow_runs_with_slots(client, deployment)
        now = _now(client)
        found.append(
            DeploymentSlots(
                deployment=f"{flow}/{deployment.name}",
                limit_name=limit.name,
                limit=limit.limit,
                active=limit.active_slots,
                holders=tuple(_holder(client, flow, one, now, timing) for one in held),
            )
        )
    return sorted(found, key=lambda one: one.deployment)


def free_slots(
    client: SyncPrefectClient, timing: Timing = TIMING
) -> list[tuple[DeploymentSlots, list[SlotHolder]]]:
    """Free the slots that no living flow run holds; which ones, and the dead flow runs.

    It looks twice, and frees nothing of a deployment where anything has happened in between. A dead
    flow run gets its true state, with which the server gives its slot back; slots that no flow run
    holds are given back by their number.
    """
    before = {one.deployment: one for one in read_slots(client, timing)}
    if not any(one.num_unheld for one in before.values()):
        return []
    time.sleep(timing.slots_settle_s)
    freed = []
    for slots in read_slots(client, timing):
        earlier = before.get(slots.deployment)
        if not slots.num_unheld or earlier is None or not slots.is_as(earlier):
            continue
        # No more than there are slots for: the server would take one of a living flow run.
        dead = [one for one in slots.holders if one.life is Life.DEAD][: slots.num_unheld]
        for one in dead:
            client.set_flow_run_state(one.flow_run.id, _true_state(one), force=True)
        if without_run := slots.num_unheld - len(dead):
            client.release_concurrency_slots([slots.limit_name], without_run, 1.0)
        freed.append((slots, dead))
    return freed


def _paged(read: Callable[..., list[Any]], **filters: Any) -> Iterator[Any]:
    offset = 0
    while page := read(**filters, limit=_PAGE, offset=offset):
        yield from page
        offset += len(page)


def _flow_runs_with_slots(
    client: SyncPrefectClient, deployment: DeploymentResponse
) -> list[FlowRun]:
    """The flow runs whose state says that they have a slot, the longest in that state first."""
    states = FlowRunFilterStateType(any_=[*_HOLDS_SLOT, StateType.SCHEDULED])
    listed = _paged(
        client.read_flow_runs,
        deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[deployment.id])),
        flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=states)),
    )
    # One that is retried in its process keeps its slot meanwhile.
    held = [one for one in listed if one.state_type in _HOLDS_SLOT or _lease_of(one)]
    return sorted(held, key=_since)


def _lease_of(flow_run: FlowRun) -> Any:
    state = flow_run.state
    return state.state_details.deployment_concurrency_lease_id if state else None


def _since(flow_run: FlowRun) -> datetime:
    state = flow_run.state
    return state.timestamp if state else datetime.min.replace(tzinfo=UTC)


def _now(client: SyncPrefectClient) -> datetime:
    """The time by the clock of Prefect's server, which stamps the states: not by the caller's."""
    return parsedate_to_datetime(client.request("GET", "/health").headers["Date"])


def _holder(
    client: SyncPrefectClient, flow: str, flow_run: FlowRun, now: datetime, timing: Timing
) -> SlotHolder:
    age_s = (now - _since(flow_run)).total_seconds()
    return SlotHolder(flow_run, age_s, *_life_of(client, flow, flow_run, now, timing))


def _life_of(
    client: SyncPrefectClient, flow: str, flow_run: FlowRun, now: datetime, timing: Timing
) -> tuple[Life, str] | tuple[Life, str, str]:
    """Whether the flow run's process lives, what says so, and how its run ended."""
    last = max(_since(flow_run), _last_heartbeat(client, flow_run))
    silent_s = (now - last).total_seconds()
    if silent_s < timing.slot_silence_s:
        return Life.ALIVE, f"heard of {silent_s:.0f} s ago"
    if _has_lease(client, flow_run):
        return Life.ALIVE, "Prefect's server has its lease, and frees the slot when that ends"
    silence = f"nothing heard of it for {silent_s / 60:.0f} min, no lease"
    if flow_run.state_type == StateType.PENDING:
        # One that begins after all is asked for its slot again by the server.
        return Life.DEAD, silence
    unknown = f"{silence}; if its process is dead, change its state in Prefect to Crashed"
    if flow != "retrain":
        return Life.UNKNOWN, unknown
    try:
        folder = folder_of(flow_run)
        if not folder.exists():
            return Life.UNKNOWN, f"{unknown}; there is no run {folder.url} (EVERTRAIN_STORAGE?)"
        end = lease.wait_until_free(folder.store, folder.name, lease.newest_attempt(folder.store))
    except RunBusyError as error:
        return Life.ALIVE, f"{error.holder} drives its run"
    except (EvertrainError, FileNotFoundError) as error:
        return Life.UNKNOWN, f"{silence}; who drives its run is not known: {error}"
    return Life.DEAD, f"{silence}, and nobody drives its run", end


def _last_heartbeat(client: SyncPrefectClient, flow_run: FlowRun) -> datetime:
    asked = EventFilter(
        event=EventNameFilter(name=[HEARTBEAT]),
        resource=EventResourceFilter(id=[f"prefect.flow-run.{flow_run.id}"]),
    )
    # The newest comes first.
    events = client.read_events(asked, limit=1).events
    return max((one.occurred for one in events), default=datetime.min.replace(tzinfo=UTC))


def _has_lease(client: SyncPrefectClient, flow_run: FlowRun) -> bool:
    """Whether the server has a lease of the flow run; only a renewal tells.

    Ask it of flow runs that have been silent for longer than a lease lasts, so that no look keeps
    the lease of a dead one.
    """
    lease_id = _lease_of(flow_run)
    if lease_id is None:
        return False
    try:
        client.renew_concurrency_lease(lease_id, RENEWED_FOR_S)
    except PrefectHTTPStatusError as error:
        if error.response.status_code == _GONE:
            return False
        raise
    return True


def _true_state(dead: SlotHolder) -> State[Any]:
    """The state of a flow run whose process is dead: the automation runs a crashed one again."""
    if dead.flow_run.state_type == StateType.CANCELLING:
        return Cancelled(message=_DIED)
    known = ended_state(folder_of(dead.flow_run), dead.end) if dead.end else None
    return known or Crashed(message=_DIED)
