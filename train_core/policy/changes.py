"""What has changed since a training: whether another one would come to anything new."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# A run whose splits have no digest, and whose files were not recorded, may have any data.
_UNKNOWN = "{split} data has no digest, so whether it changed is not known"


@dataclass(frozen=True)
class Inputs:
    """All that decides what a training and its predictions come to."""

    datasets: Mapping[str, Mapping[str, Any]]
    """Of each split the samples, the digest and, where they were recorded, the files."""
    config: Mapping[str, Any]
    settings: Mapping[str, Any]
    """The workload's, defaults included."""
    code: Mapping[str, str]
    libraries: Mapping[str, str]
    first_weights: str = ""
    """The digest of the weights that it begins with; empty: the workload's own."""
    scored: str = ""
    """What is scored: a split's name or an address."""
    scored_digest: str = ""
    """What tells one state of the files at that address from another; empty: not known."""
    is_split_scored: bool = True


def changes(was: Inputs, now: Inputs) -> list[str]:
    """What differs and counts, each in a few words; empty: the same would come of it again."""
    return [
        *_new_data(was.datasets, now.datasets),
        *_differing("settings.", was.settings, now.settings),
        *_differing("", was.config, now.config),
        *(["the weights to begin with changed"] if was.first_weights != now.first_weights else []),
        *_scored(was, now),
        *_differing("code: ", was.code, now.code, shows_values=False),
        *_differing("", was.libraries, now.libraries),
    ]


def _new_data(
    was: Mapping[str, Mapping[str, Any]], now: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    parts = [part for split in now for part in _of_split(split, was.get(split, {}), now[split])]
    if parts:
        yield f"new data: {', '.join(parts)}"
    for split, found in now.items():
        if not parts and not found.get("digest") and not found.get("files"):
            yield _UNKNOWN.format(split=split)


def _of_split(split: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    if was == now:
        return
    before, after = _files(was), _files(now)
    if before and after:
        gone, added = before.keys() - after.keys(), after.keys() - before.keys()
        altered = [name for name in before.keys() & after.keys() if before[name] != after[name]]
        told = [
            f"{split} {_count(found)} {what}"
            for found, what in ((added, "more"), (gone, "fewer"), (altered, "changed"))
            if found
        ]
        if told:
            yield from told
            return
    if was.get("samples") != now.get("samples"):
        yield f"{split} {now.get('samples')} samples, not {was.get('samples')}"
    elif was.get("digest") != now.get("digest"):
        yield f"{split} changed"


def _files(split: Mapping[str, Any]) -> dict[str, Any]:
    return {file["name"]: file for file in split.get("files") or ()}


def _count(found: Any) -> str:
    return f"{len(found)} file{'' if len(found) == 1 else 's'}"


def _scored(was: Inputs, now: Inputs) -> Iterator[str]:
    if was.scored != now.scored:
        yield f"infer_input changed ({was.scored!r} to {now.scored!r})"
    elif not now.is_split_scored and (
        not now.scored_digest or was.scored_digest != now.scored_digest
    ):
        yield f"the files at infer_input {now.scored!r} changed"


def _differing(
    prefix: str, was: Mapping[str, Any], now: Mapping[str, Any], *, shows_values: bool = True
) -> Iterator[str]:
    for name in sorted(was.keys() | now.keys()):
        before, after = was.get(name), now.get(name)
        if before != after:
            values = f" ({before!r} to {after!r})" if shows_values else ""
            yield f"{prefix}{name} changed{values}"
