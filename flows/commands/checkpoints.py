"""`evertrain diff` and `export`: what is in checkpoints, compared and taken out."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pydantic import Field
from pydantic_settings import CliPositionalArg

from flows.commands.output import DIFFERENT, Row, print_mapping, print_rows, say
from flows.commands.runs import InStorage
from flows.parameters import absolute
from train_core.differences import Comparison, TensorDifference, ValueDifference
from train_core.errands import compare_checkpoints, export_weights
from train_core.storage.addresses import find_checkpoint


class DiffCommand(InStorage):
    """Compare two checkpoints to the bit: tensors, the rest of the state, metrics.

    The exit code is 0 if they are the same, 1 if they differ and 2 if they cannot be compared.
    """

    a: CliPositionalArg[str] = Field(
        description="A run's name (its newest checkpoint), RUN/CHECKPOINT, or the path or URL of "
        "either."
    )
    b: CliPositionalArg[str] = Field(description="What to compare it with, named alike.")
    as_json: bool = Field(default=False, alias="json", description="Print JSON.")

    def cli_cmd(self) -> None:
        """Print what differs; leave with code 1 if anything does."""
        storage = absolute(self.storage)
        folder_a, a = find_checkpoint(self.a, storage)
        folder_b, b = find_checkpoint(self.b, storage)
        found = compare_checkpoints(folder_a, a, folder_b, b)
        uris = {"a": folder_a.store.uri(a.key), "b": folder_b.store.uri(b.key)}
        if self.as_json:
            facts = {"same": found.is_same} | found.model_dump(mode="json")
            print_mapping(uris | facts, as_json=True)
        else:
            print_comparison(found, **uris)
        if not found.is_same:
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


def print_comparison(found: Comparison, a: str, b: str) -> None:
    """Print the difference as tables, A's name and B's above them."""
    say(f"A: {a}\nB: {b}")
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
