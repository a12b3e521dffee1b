"""What registered models were before their log: read as its beginning, and never rewritten.

<storage>/_models/<name>/
    versions/00000003.json      version 3: a checkpoint of a run
    champions/00000002.json     the second champion: from here on that version
<storage>/<run>/decisions/<name>/
    v00000003-c00000001.json            version 3, compared with the champion of number 1
    answers/v00000003-c00000001.json    what a person answered, if that decision asks for it

Before the first event of a log both logs of that time are closed: their next numbers have a
document of format 2, with which an older evertrain ends in words wherever it would write.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from train_core.champion.records import Fault, Found, Record, check_version, is_answer_to
from train_core.errors import CheckpointError, ConfigError
from train_core.results import Approval, ChampionEntry, Decision, ModelVersion, Result
from train_core.storage.committed import in_threads
from train_core.storage.objects.store import Store
from train_core.storage.records.documents import read_document, read_small, with_checksum
from train_core.storage.records.names import (
    CHAMPIONS,
    DECISIONS,
    MODELS,
    VERSIONS,
    DecisionName,
    number_of,
    numbered,
)

_ANSWERS = "answers"
_MOST_MISSING: Final = 1_000
"""Somebody deletes a document of a log that is damaged: those are few."""


class Closing(Result):
    """The last document of a log of that time: the model goes on in its log of events."""

    format: Literal[2] = 2
    goes_on_in: Literal["log"] = "log"


_CLOSING: Final = with_checksum(Closing())


@dataclass(frozen=True)
class Earlier:
    """What a model has of that time."""

    found: list[Found]
    """As events: versions, decisions, approvals, champions, and rejections last.

    An entry that stands was not stopped by a rejection.
    """
    to_close: list[tuple[str, int]]
    """The logs that are not closed, each with its next number."""


def read_earlier(storage: Store, model: str) -> Earlier:
    """All documents of that time. Raises StorageError."""
    versions, close_versions = _log(storage, model, VERSIONS, _version)
    champions, close_champions = _log(storage, model, CHAMPIONS, _champion)
    known = [one.record for one in versions if isinstance(one.record, ModelVersion)]
    decided = in_threads(lambda one: _decided(storage, one.run, model, one.version), known)
    documents = [one for found in decided for one in found]
    found = _in_order(versions, documents, champions)
    return Earlier(found, [*close_versions, *close_champions])


def read_earlier_of_run(storage: Store, run: str, model: str) -> list[Found]:
    """The decisions on a run's versions, the answers, the champions by them, and the newest."""
    documents = _decided(storage, run, model)
    made = {one.record.champion_number + 1 for one in documents if isinstance(one.record, Decision)}
    champions, _ = _log(storage, model, CHAMPIONS, _champion, only=made)
    return _in_order([], documents, champions)


def close(store: Store, earlier: Earlier) -> bool:
    """Close what is open of that time in the model's folder; whether anything was.

    Raises FileExistsError if somebody has recorded something there meanwhile.
    """
    for log, number in earlier.to_close:
        store.create(f"{log}/{numbered(number)}", _CLOSING)
    return bool(earlier.to_close)


def numbers_of(listed: Iterable[str], first: int = 1) -> tuple[list[int], list[int]]:
    """The numbers of a log to read, `first` to the newest; and listed ones that are too great.

    A listing is no snapshot: one that shows document 7 may lack document 6, which was there before
    it. So what is not listed is read, too. A number is too great if more are missing before it than
    anybody deletes.
    """
    found = sorted(one for one in map(number_of, listed) if one is not None and one >= first)
    near = [one for count, one in enumerate(found) if one - first - count <= _MOST_MISSING]
    return list(range(first, near[-1] + 1)) if near else [], found[len(near) :]


def too_great(uri: str) -> CheckpointError:
    """What is wrong with a document whose number is too great."""
    return CheckpointError(
        f"{uri} is not evertrain's: more than {_MOST_MISSING:,} numbers before it are missing, and "
        "no model has so many. Delete it"
    )


def _in_order(versions: list[Found], documents: list[Found], champions: list[Found]) -> list[Found]:
    def is_rejection(one: Found) -> bool:
        return isinstance(one.record, Approval) and not one.record.is_approved

    others = [one for one in documents if not is_rejection(one)]
    return [*versions, *others, *champions, *filter(is_rejection, documents)]


def _log(
    storage: Store,
    model: str,
    log: str,
    read: Callable[[Store, str, str, int], Record],
    only: Collection[int] | None = None,
) -> tuple[list[Found], list[tuple[str, int]]]:
    """The documents of a log, or `only` those numbers and the newest; and how to close it.

    Nothing of the latter if it is closed; what an older evertrain has numbered after that counts
    for nothing.
    """
    above = f"{MODELS}/{model}/{log}"
    numbers, others = numbers_of(storage.names(above))
    # The last one may be what closes the log.
    newest = numbers[-2:]
    chosen = [one for one in numbers if only is None or one in only or one in newest]

    def read_one(number: int, key: str) -> Record:
        if number in others:
            raise too_great(storage.uri(key))
        return read(storage, key, model, number)

    def document(number: int) -> Found | None:
        about = {"version" if log == VERSIONS else "champion_number": number}
        key = f"{above}/{numbered(number)}"
        return _found(storage, key, partial(read_one, number), **about)

    documents: list[Found] = []
    for one in in_threads(document, [*chosen, *others]):
        if one and isinstance(one.record, Fault) and _is_closing(storage, one.key):
            return documents, []
        documents += [one] if one else []
    return documents, [(log, numbers[-1] + 1 if numbers else 1)]


def _decided(storage: Store, run: str, model: str, version: int | None = None) -> list[Found]:
    """The decisions on a run's versions of a model, or on that one, each with its answer."""
    above = f"{run}/{DECISIONS}"
    there = (DecisionName.parse(f"{model}/{name}") for name in storage.names(f"{above}/{model}"))
    documents = []
    for name in sorted(one for one in there if one and version in (None, one.version)):
        decision = _found(
            storage, f"{above}/{name}", partial(_decision, storage, name), version=name.version
        )
        if decision is None:
            continue
        documents.append(decision)
        if isinstance(decision.record, Decision):
            _, _, file = str(name).rpartition("/")
            answer = _found(
                storage,
                f"{above}/{model}/{_ANSWERS}/{file}",
                partial(_answer, storage, decision.record),
                version=name.version,
            )
            documents += [answer] if answer else []
    return documents


def _found(
    storage: Store,
    key: str,
    read: Callable[[str], Record],
    *,
    version: int | None = None,
    champion_number: int | None = None,
) -> Found | None:
    """The document, or why it cannot be read; None: there is none."""
    record: Record | Fault
    try:
        record = read(key)
    except FileNotFoundError:
        return None
    except (CheckpointError, ConfigError) as error:
        record = Fault(error, version, champion_number)
    return Found(key, storage.uri(key), record)


def _is_closing(storage: Store, key: str) -> bool:
    try:
        return read_small(storage, key) == _CLOSING
    except (CheckpointError, FileNotFoundError):
        return False


def _version(storage: Store, key: str, model: str, number: int) -> ModelVersion:
    what = "a version of a registered model"
    found, _ = read_document(storage, ModelVersion, key, what, has_checksum=True)
    _check_number(storage.uri(key), found, model, found.version, number)
    return found


def _champion(storage: Store, key: str, model: str, number: int) -> ChampionEntry:
    found, _ = read_document(storage, ChampionEntry, key, "a champion's entry", has_checksum=True)
    _check_number(storage.uri(key), found.version, model, found.number, number)
    return found


def _check_number(uri: str, version: ModelVersion, model: str, its: int, number: int) -> None:
    if (version.model, its) != (model, number):
        raise CheckpointError(f"{uri} is that of number {its} of {version.model!r}: it was renamed")
    check_version(version, uri)


def _decision(storage: Store, name: DecisionName, key: str) -> Decision:
    found, _ = read_document(storage, Decision, key, "a decision", has_checksum=True)
    of = found.challenger
    its = DecisionName(of.model, of.version, found.champion_number)
    if its != name:
        raise CheckpointError(f"{storage.uri(key)} is that of {its}")
    return found


def _answer(storage: Store, decision: Decision, key: str) -> Approval:
    found, _ = read_document(storage, Approval, key, "an approval", has_checksum=True)
    if not is_answer_to(found, decision):
        raise CheckpointError(f"{storage.uri(key)} is the answer to another decision")
    return found
