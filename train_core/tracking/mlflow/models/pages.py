"""What MLflow's pages say of champions: of a model and its versions, and in a view of runs."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from mlflow import MlflowClient

from train_core.policy.metric_names import TEST, full_name
from train_core.results import ChampionEntry, Decision, GateResult
from train_core.text.shown_text import shown
from train_core.tracking.mlflow.send_metrics import key_of
from train_core.tracking.tracker import GATE_TAG

_OURS = re.compile(r"\*\*Version \d+ serves\*\* since ")
"""How a description begins that evertrain wrote."""
MOST_CHAMPIONS, _MOST_CHARS = 8, 300
"""MLflow takes descriptions of 5,000 characters."""
_VIEW_TAG = "mlflow.sharedViewState.evertrain-"
"""What MLflow's pages list under "Views" are tags of the experiment with this prefix and an id."""
_VIEW_SAVED_MS = 1
"""They sort views by the time of saving; one that is written again has to stay the same."""
_RUN_NAME, _CREATED = "attributes.`Run Name`", "runDateAndNestInfo"
_DURATION = "duration"
"""A column that MLflow always shows: behind all others, unless the order has it."""
_RUN_NAME_PX, _DURATION_PX, _METRIC_PX, _DECISION_PX = 300, 80, 110, 455
"""With the column of the times they fill a window of 1440 pixels."""


def version_description(result: GateResult) -> str:
    """The version's description. The table of versions shows how it begins."""
    decision, challenger = result.decision, result.decision.challenger
    compared = decision.comparison
    rows = f"{compared.num_rows} rows of the {compared.split} split"
    against = (
        f"compared with version {decision.champion.version}" if decision.champion else "scored"
    )
    line = result.outcome_line
    where = f"checkpoint `{challenger.checkpoint}` of run `{challenger.run}`"
    lines = (
        shown(f"{line[0].upper()}{line[1:]}"),
        f"It is {where}, {against} on {rows}.",
        f"The evidence: `{result.decision_uri}`",
    )
    return "\n\n".join(lines)


def describe_model(
    client: MlflowClient, model: str, entries: Sequence[ChampionEntry], faults: Sequence[str]
) -> None:
    """Say on the model's page which version serves, and why; what somebody wrote there stays.

    `entries` are the latest, oldest first; `faults` say what is wrong with others of them.
    """
    known = client.get_registered_model(model).description or ""
    text = _model_description(entries, faults)
    if text != known and (not known or _OURS.match(known)):
        client.update_registered_model(model, text)


def save_view(client: MlflowClient, experiment_id: str, decision: Decision) -> None:
    """Save a view of the table of runs, unless there is one: the model's retrainings, decided on.

    The table that MLflow shows otherwise has neither the metrics nor the decisions.
    """
    model = decision.challenger.model
    key = f"{_VIEW_TAG}{model}"
    if key in client.get_experiment(experiment_id).tags:
        return
    metric = key_of(full_name(TEST, decision.metric))
    columns = {f"metrics.`{metric}`": _METRIC_PX, f"tags.`{GATE_TAG}`": _DECISION_PX}
    state = {
        "searchFilter": f"tags.`{GATE_TAG}` LIKE 'models:/{model}/%'",
        "selectedColumns": list(columns),
        "columnOrder": [_RUN_NAME, _CREATED, _DURATION, *columns],
        "columnWidths": {_RUN_NAME: _RUN_NAME_PX, _DURATION: _DURATION_PX, **columns},
    }
    view = {
        "name": f"{model}: champions",
        "createdAt": _VIEW_SAVED_MS,
        "updatedAt": _VIEW_SAVED_MS,
        "state": json.dumps(state),
    }
    client.set_experiment_tag(experiment_id, key, json.dumps(view))


def _model_description(entries: Sequence[ChampionEntry], faults: Sequence[str]) -> str:
    newest, *_ = latest = list(reversed(entries))
    lines = [
        f"- version {entry.version.version} of run `{entry.version.run}`, {_time(entry)}: "
        f"{shown(entry.why, _MOST_CHARS)}"
        for entry in latest
    ]
    lines += [f"- an entry cannot be read: {shown(fault, _MOST_CHARS)}" for fault in faults]
    serves = f"**Version {newest.version.version} serves** since {_time(newest)}"
    why = shown(newest.why, _MOST_CHARS)
    return "\n".join((f"{serves}: {why}", "", "Champions, the newest first:", "", *lines))


def _time(entry: ChampionEntry) -> str:
    return f"{entry.created_at[:16].replace('T', ' ')} UTC"
