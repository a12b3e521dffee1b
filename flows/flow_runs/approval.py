"""A person's answer to a gate that asks for one: the flow run is suspended until it is given.

A suspended flow run occupies no process, and survives a restart of worker and server. When it is
resumed, a worker runs the flow again from its beginning: what is finished is not done twice, so it
comes back here, and Prefect hands over the answer. Only a deployment's flow run can be suspended;
after any other, `evertrain approve` gives the answer. It may do so here, too, and resumes the flow
run then (`following.py`): an answer in the model's log comes before one in the form.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from prefect import State, runtime
from prefect.events import emit_event
from prefect.exceptions import Pause
from prefect.flow_runs import suspend_flow_run
from prefect.input import RunInput, keyset_from_paused_state, read_flow_run_input
from prefect.states import Suspended

from evertrain_tasks.driver_session.session import Session, stopped
from evertrain_tasks.prefect_server.flow_run import deployment_of_flow_run
from evertrain_tasks.report.gate_table import evidence_markdown
from train_core.errors import StoppedError
from train_core.policy.champion.gate_decision import Outcome
from train_core.results import Approval, GateResult

WAITS = "evertrain.flow-run.waits"
"""The event after a suspended flow run's last heartbeat; an automation expects it."""
ANSWERS = "With *approve* on, the version becomes champion; with *approve* off, it is **rejected**."
"""What the form says of its answers: one that is sent as it was opened rejects the version."""


SEE_RUN_FOLDER = {
    "approve": False,
    "person": "evertrain approve",
    "reason": "the answer is in the run folder",
}
"""What is filled in where a command has answered: the answer itself is in the model's log.

Whoever finds none there, as a run of the same name in another storage, asks again. The reason says
"run folder", as flow runs have it that earlier versions resumed.
"""


class ApprovalInput(RunInput):
    """What the reviewer fills in."""

    approve: bool
    person: str
    reason: str


class AwaitsApprovalError(StoppedError):
    """The flow run is suspended: what it has done so far is stored."""

    def __init__(self, run: str, step: int, pause: Pause) -> None:
        super().__init__(run, step)
        self.pause = pause
        """What Prefect's engine expects to be raised."""


def approval_for(session: Session, result: GateResult) -> Approval | None:
    """The answer, if the gate asks for one and it was given; None if nobody can be asked here.

    Raises AwaitsApprovalError once the flow run is suspended.
    """
    if result.decision.outcome != Outcome.ASK:
        return None
    if not deployment_of_flow_run() or session.server is None:
        return None
    decision = result.decision
    version = decision.challenger
    # Another comparison is another question. Prefect takes no dots.
    key = f"approve-{version.version}-{decision.champion_number}"
    if result.approval:
        _tell_late_answer(session, result, result.approval, key)
    if result.approval or result.entry:
        return None
    instead = f"give the answer with `evertrain approve {version.model} {version.version}`"
    if not session.server.wait_for_answer():
        session.log.add_warning(f"nobody can be asked for approval now: {instead}")
        return None
    form = ApprovalInput.with_initial_data(
        description=f"{evidence_markdown(result)}\n\n{ANSWERS}",
        approve=False,
        person="",
        reason="",
    )
    try:
        answer = _ask(form, key)
    except Pause as pause:
        step = stopped(session.request).step
        raise AwaitsApprovalError(session.request.run, step, pause) from None
    except Exception as error:  # noqa: BLE001 (whatever Prefect's client raises)
        session.log.add_warning(f"nobody could be asked for approval ({error}): {instead}")
        return None
    return Approval(
        version=version,
        champion_number=decision.champion_number,
        is_approved=answer.approve,
        person=answer.person or "somebody",
        reason=answer.reason or "no reason given",
        created_at=datetime.now(UTC).isoformat(),
    )


def _ask(form: type[ApprovalInput], key: str) -> ApprovalInput:
    """The answer to the question of that key. Raises Pause once the flow run is suspended for it.

    Prefect suspends a flow run once for a key. If the flow run is run again before anybody has
    answered, because it was taken for dead or somebody retried it, Prefect hands over the form's
    defaults, which would reject the version in nobody's name: the question is asked again, with
    another key.
    """
    answer: ApprovalInput = suspend_flow_run(wait_for_input=form, key=key)
    given = read_flow_run_input(answer.metadata.key)
    return _ask(form, f"{key}-again") if given in (None, SEE_RUN_FOLDER) else answer


def _tell_late_answer(session: Session, result: GateResult, counts: Approval, key: str) -> None:
    """Warn if somebody has sent the form, and somebody else had given the other answer before."""
    with suppress(Exception):  # whatever Prefect's client raises: it is a message only
        paused: State[Any] = Suspended(pause_key=key)
        given: Any = read_flow_run_input(keyset_from_paused_state(paused)["response"])
        if given not in (None, SEE_RUN_FOLDER) and given["approve"] != counts.is_approved:
            said = "approve" if given["approve"] else "reject"
            who = f"{given['person'] or 'somebody'} ({said})"
            session.log.add_warning(f"the answer of {who} came second: {result.summary}")


def announce_wait() -> None:
    """Tell the automation `evertrain-notice-death` to expect no heartbeat of this flow run.

    The automation sets a flow run to Crashed if none of the events that it expects follows a
    heartbeat, and Prefect sends heartbeats until the flow has returned, also while a suspended flow
    run closes its session. This event must therefore be the last thing that the flow does. A
    heartbeat that is sent within milliseconds of it may still count, since Prefect's server handles
    two events at a time: the flow run is then run again after ten minutes, and asks again.
    """
    emit_event(WAITS, resource={"prefect.resource.id": f"prefect.flow-run.{runtime.flow_run.id}"})
