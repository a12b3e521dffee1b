"""What has changed since a training: whether another one would give anything new."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

# Splits that have no digest, of a workload that names no files, may be any data.
_UNKNOWN = "{split} data has no digest, so whether it changed is not known"
_ONE_FILE = "the run before recorded the digest of one file only"
# Of a run that recorded no modules: the digests of the files that were named.
_FILES = ("workload", "predictor", "data")


@dataclass(frozen=True)
class Inputs:
    """All that decides the results of a training and its predictions."""

    datasets: Mapping[str, Mapping[str, Any]]
    """Of each split the samples and the digest."""
    config: Mapping[str, Any]
    settings: Mapping[str, Any]
    """The workload's, defaults included."""
    code: Mapping[str, str]
    libraries: Mapping[str, str]
    modules: Mapping[str, str] = field(default_factory=dict)
    """The digest of each of the user's own modules; empty: the run did not record them."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """The versions of what these import, and of what that requires."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """The digest of each source of files that the workload names."""
    files: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The digests of a source's files, by their names; only to tell what of it changed."""
    first_weights: str = ""
    """The digest of the weights that it begins with; empty: the workload's own."""
    scored: str = ""
    """What is scored: a split's name or an address."""
    scored_state: str = ""
    """What tells one state of the files at that address from another; empty: not known."""
    is_split_scored: bool = True


def changes(was: Inputs, now: Inputs) -> list[str]:
    """What differs and counts, each in a few words; empty: the results would be the same again."""
    return [
        *_new_data(was, now),
        *_differing("settings.", was.settings, now.settings),
        *_differing("", was.config, now.config),
        *(["the weights to begin with changed"] if was.first_weights != now.first_weights else []),
        *_scored(was, now),
        *_differing("code: ", _named_code(was), _named_code(now), shows_values=False),
        *_own_code(was, now),
        *_differing("", was.libraries, now.libraries),
    ]


def _new_data(was: Inputs, now: Inputs) -> Iterator[str]:
    named = was.sources.keys() | now.sources.keys()
    altered = sorted(name for name in named if was.sources.get(name) != now.sources.get(name))
    parts = [part for name in altered for part in _of_source(name, was, now)]
    parts = parts or [
        part
        for split, found in now.datasets.items()
        for part in _of_split(split, was.datasets.get(split, {}), found)
    ]
    if parts:
        yield f"new data: {', '.join(parts)}"
    elif not now.sources:
        for split, found in now.datasets.items():
            if not found.get("digest"):
                yield _UNKNOWN.format(split=split)


def _of_source(name: str, was: Inputs, now: Inputs) -> list[str]:
    before, after = was.files.get(name), now.files.get(name)
    if before is None or after is None:
        return [f"{name} changed"]
    altered = [file for file in before.keys() & after.keys() if before[file] != after[file]]
    changes = (
        (after.keys() - before.keys(), "more"),
        (before.keys() - after.keys(), "fewer"),
        (altered, "changed"),
    )
    return [f"{name} {_count(files)} {what}" for files, what in changes if files]


def _of_split(split: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    if not was:
        yield f"{split} was not compared before"
    elif was.get("samples") != now.get("samples"):
        yield f"{split} {now.get('samples')} samples, not {was.get('samples')}"
    elif was.get("digest") != now.get("digest"):
        yield f"{split} changed"


def _count(found: Collection[str]) -> str:
    return f"{len(found)} file{'' if len(found) == 1 else 's'}"


def _scored(was: Inputs, now: Inputs) -> Iterator[str]:
    if was.scored != now.scored:
        yield f"infer_input changed ({was.scored!r} to {now.scored!r})"
    elif not now.is_split_scored and (not now.scored_state or was.scored_state != now.scored_state):
        yield f"the files at infer_input {now.scored!r} changed"


def _named_code(found: Inputs) -> Mapping[str, str]:
    return {name: text for name, text in found.code.items() if name not in _FILES}


def _own_code(was: Inputs, now: Inputs) -> Iterator[str]:
    if now.modules and not was.modules:
        yield _ONE_FILE
        return
    yield from _differing("code: ", was.modules, now.modules, shows_values=False)
    # Python's, torch's and numpy's versions are among the libraries.
    others = [
        {name: version for name, version in one.items() if name not in now.libraries}
        for one in (was.packages, now.packages)
    ]
    yield from _differing("", *others)


def _differing(
    prefix: str, was: Mapping[str, Any], now: Mapping[str, Any], *, shows_values: bool = True
) -> Iterator[str]:
    for name in sorted(was.keys() | now.keys()):
        before, after = was.get(name), now.get(name)
        if before != after:
            values = f" ({before!r} to {after!r})" if shows_values else ""
            yield f"{prefix}{name} changed{values}"
