"""`evertrain diff` and `export`: runs and checkpoints compared, and weights taken out."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pydantic import Field
from pydantic_settings import CliPositionalArg

from flows.cli.arguments import InStorage
from flows.cli.output import DIFFERENT, Row, print_mapping, print_rows, say
from train_core.client.isolated import compare_checkpoints, export_weights
from train_core.client.run_differences import RecordsComparison, compare_records
from train_core.differences import Comparison, TensorDifference, ValueDifference
from train_core.storage.addresses import absolute, find, find_checkpoint

_MOST_SHOWN = 50


class DiffCommand(InStorage):
    """Compare two runs, or two checkpoints to the bit: tensors, the rest of the state, metrics.

    Of runs: configuration, data, surroundings, and their best and newest checkpoints. The exit code
    is 0 if they are the same, 1 if they differ and 2 if they cannot be compared. Surroundings, and
    parameters that may change in a run, do not count.
    """

    a: CliPositionalArg[str] = Field(
        description="A run's name, RUN/CHECKPOINT, or the path or URL of either. Beside a "
        "checkpoint a run is its best one by its report, the newest without one."
    )
    b: CliPositionalArg[str] = Field(description="What to compare it with, named alike.")
    as_json: bool = Field(default=False, alias="json", description="Print JSON.")

    def cli_cmd(self) -> None:
        """Print what differs; leave with code 1 if anything does that counts."""
        storage = absolute(self.storage)
        folder_a, a = find_checkpoint(self.a, storage, prefer_best=True)
        folder_b, b = find_checkpoint(self.b, storage, prefer_best=True)
        are_runs = all(find(what, storage)[1] is None for what in (self.a, self.b))
        records = compare_records(folder_a, folder_b) if are_runs else None
        pairs = [(a, b)]
        if are_runs:
            newest_pair = folder_a.checkpoints()[-1], folder_b.checkpoints()[-1]
            if [one.name for one in newest_pair] != [a.name, b.name]:
                pairs.append(newest_pair)
        found, *others = compare_checkpoints(folder_a, folder_b, *pairs)
        newest = others[0] if others else None
        is_same = all(one.is_same for one in (records, found, *others) if one is not None)
        uris = {"a": folder_a.store.uri(a.key), "b": folder_b.store.uri(b.key)}
        if self.as_json:
            facts = uris | {"same": is_same} | found.model_dump(mode="json")
            if records is not None:
                facts |= records.model_dump(mode="json")
                facts["newest"] = newest and newest.model_dump(mode="json")
            print_mapping(facts, as_json=True)
        else:
            say(f"A: {uris['a']}\nB: {uris['b']}")
            if records is not None:
                print_records(records)
            print_comparison(found)
            if newest is not None:
                differ = "identical, too" if newest.is_same else _in_short(newest)
                say(f"\nThe newest checkpoints: {differ}")
        if not is_same:
            raise SystemExit(DIFFERENT)


class ExportCommand(InStorage):
    """Write a checkpoint's verified weights as one plain safetensors file."""

    what: CliPositionalArg[str] = Field(
        description="RUN/CHECKPOINT, its path or URL, or a run: its report's best checkpoint, the "
        "newest while there is no report."
    )
    target: CliPositionalArg[str] = Field(
        description="Path or URL of the file; a name that does not end in .safetensors is a "
        "folder, which gets model.safetensors."
    )
    force: bool = Field(default=False, description="Overwrite a file that is there.")
    as_json: bool = Field(default=False, alias="json", description="Print JSON.")

    def cli_cmd(self) -> None:
        """Print what was written: its address, size and digest."""
        folder, checkpoint = find_checkpoint(self.what, absolute(self.storage), prefer_best=True)
        written = export_weights(folder, checkpoint, self.target, overwrite=self.force)
        print_mapping(written.model_dump(mode="json"), as_json=self.as_json)


def print_records(found: RecordsComparison) -> None:
    """Print what differs between two runs' records, what counts first."""
    for title, differences in (
        ("configuration", found.configuration),
        ("data", found.data),
        ("what may change in a run (does not count)", found.may_change),
        ("surroundings (do not count)", found.surroundings),
    ):
        if differences:
            say(f"\n{len(differences)} differences of {title}")
            print_rows(value_rows(differences[:_MOST_SHOWN]), as_json=False, empty="")
            if len(differences) > _MOST_SHOWN:
                say(f"… and {len(differences) - _MOST_SHOWN} more: --json has all")
    if found.is_same:
        say("configuration and data: the same")


def print_comparison(found: Comparison) -> None:
    """Print how two checkpoints differ, as tables."""
    if found.is_same:
        say(f"identical: {found.num_tensors} tensors and the rest of the state, to the bit")
        return
    for title, rows in (
        ("tensors", tensor_rows(found.tensors)),
        ("values of the state", value_rows(found.values)),
        ("metrics", value_rows(found.metrics)),
    ):
        of = f" of {found.num_tensors}" if title == "tensors" else ""
        if rows:
            say(f"\n{len(rows)}{of} {title} differ")
            print_rows(rows, as_json=False, empty="")


def _in_short(found: Comparison) -> str:
    return (
        f"{len(found.tensors)} of {found.num_tensors} tensors, {len(found.values)} values and "
        f"{len(found.metrics)} metrics differ"
    )


def tensor_rows(differences: Sequence[TensorDifference]) -> list[Row]:
    """A row for each tensor: how many elements differ, how far, and the first of them."""
    return [
        {
            "tensor": one.name,
            "differs in": one.kind,
            "elements": f"{one.num_different} of {one.num_elements}" if one.num_elements else None,
            "max difference": _largest(one),
            "first at": json.dumps(one.index) if one.num_elements else None,
            "A": _shown(one.a),
            "B": _shown(one.b),
        }
        for one in differences
    ]


def value_rows(differences: Sequence[ValueDifference]) -> list[Row]:
    """A row for each value."""
    return [
        {"name": one.name, "differs in": one.kind, "A": _shown(one.a), "B": _shown(one.b)}
        for one in differences
    ]


def _largest(one: TensorDifference) -> str | None:
    if one.num_elements == 0:
        return None
    return "not finite" if one.max_difference is None else f"{one.max_difference:.4g}"


def _shown(value: object) -> str | None:
    """In full: two numbers that differ must not look the same."""
    return value if value is None or isinstance(value, str) else json.dumps(value)
