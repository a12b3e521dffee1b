"""`evertrain slots`: what holds the slots of the deployments at Prefect's server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from evertrain_flows.cli.output.listings import Row, print_rows
from evertrain_flows.cli.output.terminal import say
from evertrain_flows.cli.prefect_server import asking_named_server

if TYPE_CHECKING:
    from evertrain_flows.flow_runs.deployment_slots import DeploymentSlots


class SlotsCommand(BaseModel):
    """Show what holds the slots of deployments with a limit, at the server of PREFECT_API_URL.

    A server that is killed may count a slot for ever that nobody holds: `--free` gives it back.
    """

    free: bool = Field(
        default=False, description="Free the slots that no living flow run holds, and say which."
    )
    as_json: bool = Field(default=False, alias="json", description="Print JSON.")

    def cli_cmd(self) -> None:
        """Print a row for each flow run that holds a slot, and for slots that none holds.

        Raises ConfigError if no server is named, and StageError if it does not answer.
        """
        # Imported late: Prefect takes a second.
        from prefect.client.orchestration import get_client

        from evertrain_flows.flow_runs.deployment_slots import free_slots, read_slots

        with asking_named_server("slots"), get_client(sync_client=True) as client:
            freed = free_slots(client) if self.free else []
            rows = [row for slots in read_slots(client) for row in _rows(slots)]
        for slots, dead in freed:
            names = ", ".join(f"{one.flow_run.name} ({one.why})" for one in dead)
            say(f"{slots.deployment}: freed {slots.num_unheld}, held by {names or 'no flow run'}")
        if self.free and not freed:
            say("nothing was freed: no slot is counted that no living flow run may hold")
        print_rows(rows, as_json=self.as_json, empty="no deployment has a limit")


def _rows(slots: DeploymentSlots) -> Iterator[Row]:
    of_all: Row = {
        "deployment": slots.deployment,
        "limit": slots.limit,
        "active": slots.active,
    }
    for one in slots.holders:
        yield of_all | {
            "held by": one.flow_run.name,
            "state": one.flow_run.state_name,
            "for": f"{one.age_s / 60:.0f} min",
            "process": one.life.value,
            "why": one.why,
        }
    if not slots.holders:
        yield of_all | {"held by": "no flow run" if slots.active else None}
