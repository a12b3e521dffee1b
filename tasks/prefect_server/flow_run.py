"""Facts of the calling flow run, read from its context: no request is made for them."""

from __future__ import annotations

from uuid import UUID

from prefect import runtime
from prefect.context import FlowRunContext


def deployment_of_flow_run() -> UUID | None:
    """The deployment of this flow run; None on a command line, in a script and in a subflow.

    `prefect.runtime.deployment` asks the API where there is none, and gives a subflow its parent's.
    """
    context = FlowRunContext.get()
    flow_run = context.flow_run if context else None
    return flow_run.deployment_id if flow_run and not flow_run.parent_task_run_id else None


def shown_flow_run() -> str:
    """This flow run in Markdown: a link to its page, if it is of a deployment; empty without one.

    A flow run of a command line has its page on a server that ends with the command.
    """
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return ""
    name, unique = context.flow_run.name, context.flow_run.id
    if deployment_of_flow_run():
        return f"[{name}]({runtime.flow_run.ui_url})"
    return f"`{name}` ({unique})"
