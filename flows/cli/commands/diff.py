"""`evertrain diff`: two runs or two checkpoints compared."""

from __future__ import annotations

from typing import Any

from pydantic import Field
from pydantic_settings import CliPositionalArg

from evertrain_flows.cli.arguments import InStorage
from evertrain_flows.cli.output.difference_rows import tensor_rows, value_rows
from evertrain_flows.cli.output.listings import DIFFERENT, print_mapping, print_rows
from evertrain_flows.cli.output.terminal import say
from train_core.client.diff import Diff, RecordsComparison, diff
from train_core.differences import Comparison
from train_core.storage.addresses import absolute

_MOST_SHOWN = 50


class DiffCommand(InStorage):
    """Compare two runs, or two checkpoints to the bit: tensors, the rest of the state, metrics.

    Of runs: configuration, data, surroundings, and their best and newest checkpoints; the newest
    alone if one of the runs has no report. The exit code is 0 if they are the same, 1 if they
    differ and 2 if they cannot be compared. Surroundings, and parameters that may change in a run,
    do not count.
    """

    a: CliPositionalArg[str] = Field(
        description="A run's name, RUN/CHECKPOINT, or the path or URL of either. Beside a "
        "checkpoint a run stands for its report's best one, or its newest without a report."
    )
    b: CliPositionalArg[str] = Field(description="The other run or checkpoint, in the same form.")
    as_json: bool = Field(default=False, alias="json", description="Print JSON.")

    def cli_cmd(self) -> None:
        """Print the differences; exit with code 1 if there is one that counts."""
        found = diff(self.a, self.b, absolute(self.storage))
        if self.as_json:
            print_json(found)
        else:
            print_diff(found)
        if not found.is_same:
            raise SystemExit(DIFFERENT)


def print_json(found: Diff) -> None:
    """Print all of it as one JSON object."""
    facts: dict[str, Any] = {"a": found.a, "b": found.b, "compared": found.compared}
    facts["same"] = found.is_same
    facts |= found.checkpoints.model_dump(mode="json")
    if found.records is not None:
        facts |= found.records.model_dump(mode="json")
        facts["newest"] = found.newest and found.newest.model_dump(mode="json")
        facts["unread"] = found.unread
    print_mapping(facts, as_json=True)


def print_diff(found: Diff) -> None:
    """Print the differences as tables."""
    say(f"A: {found.a}", f"B: {found.b}")
    if found.compared != "named":
        say(f"the {found.compared} checkpoint of each run")
    if found.records is not None:
        print_records(found.records)
    print_comparison(found.checkpoints)
    if found.newest is not None:
        differ = "identical, too" if found.newest.is_same else _in_short(found.newest)
        say("", f"The newest checkpoints: {differ}")
    for reason in found.unread:
        say("", f"Not compared: {reason}")


def print_records(found: RecordsComparison) -> None:
    """Print what differs between two runs' records, what counts first."""
    for title, differences in (
        ("configuration", found.configuration),
        ("data", found.data),
        ("what may change in a run (does not count)", found.may_change),
        ("surroundings (do not count)", found.surroundings),
    ):
        if differences:
            say("", f"{len(differences)} differences of {title}")
            print_rows(value_rows(differences[:_MOST_SHOWN]), as_json=False, empty="")
            if len(differences) > _MOST_SHOWN:
                say(f"… and {len(differences) - _MOST_SHOWN} more: --json has all")
    if found.is_same:
        say("configuration and data: the same")


def print_comparison(found: Comparison) -> None:
    """Print how two checkpoints differ, as tables."""
    if found.is_same:
        tensors = f"{found.num_tensors} tensors and the rest of the state" * bool(found.num_tensors)
        say(f"identical: {tensors or 'all files and metrics'}, to the bit")
        return
    for title, rows in (
        ("tensors", tensor_rows(found.tensors)),
        ("values of the state", value_rows(found.values)),
        ("metrics", value_rows(found.metrics)),
    ):
        of = f" of {found.num_tensors}" if title == "tensors" else ""
        if rows:
            say("", f"{len(rows)}{of} {title} differ")
            print_rows(rows, as_json=False, empty="")


def _in_short(found: Comparison) -> str:
    return (
        f"{len(found.tensors)} of {found.num_tensors} tensors, {len(found.values)} values and "
        f"{len(found.metrics)} metrics differ"
    )
