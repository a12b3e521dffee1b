"""Registered models, decisions and answers as an enemy could write them: no command ends badly."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evertrain_flows.cli.app import main
from tests.client.test_champions import MODEL, Models
from tests.hostile.whole_run import Anything, everything, reseal, resealed
from train_core.champion.log import ModelLog
from train_core.client.checkpoints import verify_run
from train_core.errors import CheckpointError
from train_core.policy.champion.gate_decision import Outcome
from train_core.storage.objects.store import Store
from train_core.storage.records.documents import LARGEST_NUMBER, MAX_DOCUMENT_BYTES, with_checksum
from train_core.storage.run_folder import RunFolder

pytestmark = pytest.mark.timeout(60)

BEFORE, LOG = "before", "log"
"""Where the documents lie: as before the log of a model, and in it."""
VERSION = f"_models/{MODEL}/versions/00000003.json"
CHAMPION = f"_models/{MODEL}/champions/00000002.json"
LAST_VERSION = f"_models/{MODEL}/versions/{LARGEST_NUMBER}.json"
LAST_CHAMPION = f"_models/{MODEL}/champions/{LARGEST_NUMBER}.json"
DECISION = f"waiting/decisions/{MODEL}/v00000003-c00000002.json"
ANSWER = f"waiting/decisions/{MODEL}/answers/v00000003-c00000002.json"
PROMOTED, REGISTERED, DECIDED, NEXT, LAST = (
    f"_models/{MODEL}/log/{number:08d}.json" for number in (6, 7, 8, 9, LARGEST_NUMBER)
)
TEXT = "x[/nope] [link=http://evil]here[/link] \x1b[31mred\x1b]0;title\x07 \u202e"

Spoil = Callable[[Store], object]


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two champions one after the other, and a version that waits for an answer."""
    made = {}
    for form in (BEFORE, LOG):
        made[form] = tmp_path_factory.mktemp("models") / "runs"
        models = Models(str(made[form]), is_before=form == BEFORE)
        for run in ("first", "second"):
            models.promote(run)
        models.decide(models.register("waiting"), Outcome.ASK)
    return made


@pytest.fixture
def form(request: pytest.FixtureRequest) -> str:
    return str(getattr(request, "param", BEFORE))


@pytest.fixture
def storage(templates: dict[str, Path], form: str, tmp_path: Path) -> Store:
    """Runs and a model; copies lie outside of the storage, where `..` and the cases' links lead."""
    template = templates[form]
    shutil.copytree(template / "first", tmp_path / "outside")
    shutil.copytree(template, tmp_path / "outside" / "runs")
    shutil.copytree(template, tmp_path / "storage" / "runs")
    return Store(str(tmp_path / "storage" / "runs"))


def path_of(store: Store, key: str) -> Path:
    """The place of the key, which is empty then."""
    path = Path(store.url, key)
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def has(key: str, data: bytes) -> Spoil:
    return lambda store: path_of(store, key).write_bytes(data)


def links(key: str) -> Spoil:
    """A link to the like of it outside."""

    def spoil(store: Store) -> None:
        path_of(store, key).symlink_to(Path(store.url, "../../outside/runs", key).resolve())

    return spoil


def says(key: str, **changes: Any) -> Spoil:
    return lambda store: reseal(of(store), key, lambda found: found | changes)


def says_within(key: str, field: str, **changes: Any) -> Spoil:
    return lambda store: reseal(
        of(store), key, lambda found: found | {field: found[field] | changes}
    )


def of(store: Store) -> Any:
    """What `reseal` takes: the storage itself, in place of one of its runs."""

    class Place:
        def __init__(self) -> None:
            self.store = store

    return Place()


def copied(source: str, target: str, **changes: Any) -> Spoil:
    def spoil(store: Store) -> None:
        content = json.loads(store.read(source, MAX_DOCUMENT_BYTES))
        del content["digest"]
        store.write(target, with_checksum(Anything(content | changes)))

    return spoil


def has_a_key_twice(store: Store) -> None:
    text = store.read(DECISION, MAX_DOCUMENT_BYTES)
    store.write(DECISION, resealed(text.replace(b'"metric"', b'"metric": "a", "metric"', 1)))


CASES: dict[str, Spoil] = {
    **{f"{key} is garbage": has(key, b"x") for key in (VERSION, CHAMPION, DECISION, ANSWER)},
    **{f"{key} is empty": has(key, b"") for key in (VERSION, CHAMPION, DECISION, ANSWER)},
    **{f"{key} is of format 2": says(key, format=2) for key in (VERSION, CHAMPION, DECISION)},
    **{
        f"{key} is a pipe": lambda store, key=key: os.mkfifo(path_of(store, key))
        for key in (VERSION, CHAMPION, DECISION, ANSWER, f"_models/{MODEL}", "_models")
    },
    **{
        f"{key} is a folder": lambda store, key=key: path_of(store, key).mkdir()
        for key in (VERSION, CHAMPION, DECISION, ANSWER)
    },
    **{f"{key} is a link": links(key) for key in (VERSION, CHAMPION, DECISION, ANSWER)},
    "a version outside": says(VERSION, run="../../outside"),
    "a version of an absolute path": says(VERSION, run="/etc"),
    "a version of a run that is not there": says(VERSION, run="nowhere"),
    "a version of no checkpoint": says(VERSION, checkpoint="../../outside"),
    "a version of a checkpoint with markup": says(VERSION, checkpoint=TEXT),
    "a version of another time": says(VERSION, created_at=TEXT),
    "a champion outside": says_within(CHAMPION, "version", run="../../outside"),
    "a champion of no checkpoint": says_within(CHAMPION, "version", checkpoint="../outside"),
    "a champion of version 10^300": says_within(CHAMPION, "version", version=10**300),
    "a champion of version true": says_within(CHAMPION, "version", version=True),
    "a champion with markup": says(CHAMPION, reason=TEXT, decided_by=TEXT, created_at=TEXT),
    "a champion with a long reason": says(CHAMPION, reason="x" * 3_000_000),
    "a decision on another checkpoint": says_within(DECISION, "challenger", checkpoint="../x"),
    "a decision on another run": says_within(DECISION, "challenger", run="first"),
    "a decision with markup": says(DECISION, reasons=[TEXT], metric=TEXT),
    "a decision with long reasons": says(DECISION, reasons=["x" * 3_000_000]),
    "a decision with many reasons": says(DECISION, reasons=["x"] * 300_000),
    "a decision with a key twice": has_a_key_twice,
    "the last version": copied(VERSION, LAST_VERSION, version=LARGEST_NUMBER),
    "the last champion": copied(CHAMPION, LAST_CHAMPION, number=LARGEST_NUMBER),
}
EVENTS = (PROMOTED, REGISTERED, DECIDED, NEXT)
CASES_OF_LOG: dict[str, Spoil] = {
    **{f"{key} is garbage": has(key, b"x") for key in EVENTS},
    **{f"{key} is empty": has(key, b"") for key in EVENTS},
    **{f"{key} is of format 2": says(key, format=2) for key in EVENTS[:3]},
    **{f"{key} is a pipe": lambda store, key=key: os.mkfifo(path_of(store, key)) for key in EVENTS},
    **{f"{key} is a folder": lambda store, key=key: path_of(store, key).mkdir() for key in EVENTS},
    **{f"{key} is a link": links(key) for key in EVENTS[:3]},
    "the log is a pipe": lambda store: os.mkfifo(path_of(store, f"_models/{MODEL}/log")),
    "an event of no kind": says(REGISTERED, event=TEXT),
    "an event of another kind": says(DECIDED, event="promoted"),
    "an event without a record": says(DECIDED, record=None),
    "an event of another number": says(REGISTERED, number=10**300),
    "a version outside": says_within(REGISTERED, "record", run="../../outside"),
    "a version of no checkpoint": says_within(REGISTERED, "record", checkpoint=TEXT),
    "a version of another model": says_within(REGISTERED, "record", model="../x"),
    "the greatest version": says_within(REGISTERED, "record", version=LARGEST_NUMBER),
    "a version of 10^300": says_within(REGISTERED, "record", version=10**300),
    "a champion of another number": says_within(PROMOTED, "record", number=LARGEST_NUMBER),
    "a champion with markup": says_within(PROMOTED, "record", reason=TEXT, decided_by=TEXT),
    "a champion with a long reason": says_within(PROMOTED, "record", reason="x" * 3_000_000),
    "a decision with markup": says_within(DECIDED, "record", reasons=[TEXT], metric=TEXT),
    "a decision with many reasons": says_within(DECIDED, "record", reasons=["x"] * 300_000),
    "the last event": copied(REGISTERED, LAST, number=LARGEST_NUMBER),
    "a note of no event": has(f"waiting/decisions/{MODEL}/registered-{10**17}.json", b"x"),
    "a note that is a pipe": lambda store: os.mkfifo(
        path_of(store, f"waiting/decisions/{MODEL}/registered-00000001.json")
    ),
}
LOOKS = {
    "champions": ["champions", MODEL],
    "champions --json": ["champions", MODEL, "--json"],
    "versions": ["champions", MODEL, "--versions"],
    "versions --json": ["champions", MODEL, "--versions", "--json"],
    "verify": ["verify", "waiting"],
    "ls": ["runs", "list"],
    "show": ["show", "waiting"],
    "prune --dry-run": ["prune", "waiting", "--dry-run"],
}
WHY = ["--reason", TEXT, "--by", TEXT, "--tracking-uri", ""]
CHANGES = {
    "approve": ["approve", MODEL, "3", *WHY],
    "rollback": ["rollback", MODEL, *WHY],
    "rollback --to": ["rollback", MODEL, "--to", "3", *WHY],
    "delete": ["runs", "delete", "second", "--yes", "--tracking-uri", ""],
}


@pytest.mark.promise("hostile-folders", "terminal")
@pytest.mark.parametrize(
    ("form", "name"),
    [
        *((BEFORE, name) for name in ("nothing is spoiled", *CASES)),
        *((LOG, name) for name in ("nothing is spoiled", *CASES_OF_LOG)),
    ],
    indirect=["form"],
)
def test_no_document_of_a_registered_model_ends_a_command_badly(
    storage: Store, tmp_path: Path, form: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (CASES if form == BEFORE else CASES_OF_LOG).get(name, bool)(storage)
    outside, here = everything(tmp_path / "outside"), everything(tmp_path / "storage")
    for command in (*LOOKS.values(), *CHANGES.values()):
        is_look = command in LOOKS.values()
        try:
            code = main([*command, "--storage", storage.url])
        except SystemExit as ended:
            code = ended.code  # type: ignore[assignment]
        captured = capsys.readouterr()
        assert code in (0, 1, 2), command
        assert code == 2 or captured.out, command
        assert code != 2 or captured.err.count("\n") == 1, command
        assert not set(captured.out + captured.err) & set("\x1b\x07\u202e"), command
        assert "--json" in command or len(captured.out) < 30_000, command
        if "--json" in command and code == 0:
            json.loads(captured.out)
        assert everything(tmp_path / "outside") == outside, command
        assert not is_look or everything(tmp_path / "storage") == here, command


def rows_of(
    storage: Store, capsys: pytest.CaptureFixture[str], *command: str
) -> list[dict[str, Any]]:
    assert main(["champions", MODEL, *command, "--json", "--storage", storage.url]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return rows


@pytest.mark.promise("faults-in-rows")
@pytest.mark.parametrize("spoil", [has(CHAMPION, b"x"), says(CHAMPION, format=2)])
def test_a_champion_that_cannot_be_read_hides_no_other(
    storage: Store, capsys: pytest.CaptureFixture[str], spoil: Spoil
) -> None:
    spoil(storage)
    first, second = rows_of(storage, capsys)
    assert (first["number"], first["run"], first["status"]) == (1, "first", "replaced")
    assert second["number"] == 2
    assert second["status"].startswith("cannot be read: ")
    assert CHAMPION in second["status"]


@pytest.mark.promise("faults-in-rows")
@pytest.mark.parametrize("key", [VERSION, DECISION])
@pytest.mark.parametrize("damage", [lambda key: has(key, b"x"), lambda key: says(key, format=2)])
def test_a_version_or_a_decision_that_cannot_be_read_hides_no_other(
    storage: Store, capsys: pytest.CaptureFixture[str], key: str, damage: Callable[[str], Spoil]
) -> None:
    damage(key)(storage)
    first, second, third = rows_of(storage, capsys, "--versions")
    assert [row["status"] for row in (first, second)] == ["became champion"] * 2
    assert third["version"] == 3
    assert third["status"].startswith("cannot be read: ")
    assert key in third["status"]


@pytest.mark.timeout(20)
def test_a_number_after_which_none_is_found_again_is_refused(
    storage: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would be said to be champion, and a new version would be looked for without end."""
    CASES["the last champion"](storage)
    CASES["the last version"](storage)
    before = sorted(Path(storage.url, "_models").rglob("*"))
    assert main(["rollback", MODEL, "--to", "1", *WHY, "--storage", storage.url]) == 2
    assert "no model has so many. Delete it" in capsys.readouterr().err
    with pytest.raises(CheckpointError, match="no model has so many"):
        ModelLog(storage.url, MODEL).register("waiting", "step-00000009-a0001", "9")
    assert sorted(Path(storage.url, "_models").rglob("*")) == before


@pytest.mark.promise("faults-in-rows")
@pytest.mark.parametrize("form", [LOG], indirect=True)
@pytest.mark.parametrize("key", [PROMOTED, REGISTERED, DECIDED])
@pytest.mark.parametrize("damage", [lambda key: has(key, b"x"), lambda key: says(key, format=2)])
def test_an_event_that_cannot_be_read_is_a_row_and_hides_no_other(
    storage: Store, capsys: pytest.CaptureFixture[str], key: str, damage: Callable[[str], Spoil]
) -> None:
    damage(key)(storage)
    champions, versions = rows_of(storage, capsys), rows_of(storage, capsys, "--versions")
    for rows in (champions, versions):
        assert [key in row["status"] for row in rows if row.get("run") == "first"] == [False]
        (row,) = (row for row in rows if row.get("run") is None)
        assert row["status"].startswith("cannot be read: ")
        assert key in row["status"]
    (newest,) = (row["status"] for row in champions[:-1] if row["status"] != "replaced")
    # Whatever it is, it came after the newest entry that can be read.
    assert newest == "champion, unless an event that cannot be read names another"
    assert champions[0]["status"] == (newest if key == PROMOTED else "replaced")
    known = [row["version"] for row in versions if row.get("run")]
    assert known == ([1, 2] if key == REGISTERED else [1, 2, 3])


@pytest.mark.promise("verified")
@pytest.mark.parametrize("form", [LOG], indirect=True)
def test_verify_reads_the_events_of_a_runs_versions(storage: Store) -> None:
    folder = RunFolder(storage.url, "waiting")
    assert DECIDED not in [one.what for one in verify_run(folder)]
    has(DECIDED, b"x")(storage)
    faults = {one.what: one.faults for one in verify_run(folder) if one.faults}
    (fault,) = faults[DECIDED]
    assert DECIDED in fault


@pytest.mark.promise("verified")
@pytest.mark.parametrize("key", [DECISION, ANSWER])
@pytest.mark.parametrize("data", [b"x", b""])
def test_verify_reads_decisions_and_answers(storage: Store, key: str, data: bytes) -> None:
    folder = RunFolder(storage.url, "waiting")
    assert not any(one.what.startswith("decisions/") for one in verify_run(folder))
    has(key, data)(storage)
    faults = {one.what: one.faults for one in verify_run(folder) if one.faults}
    (fault,) = faults[key.removeprefix("waiting/")]
    assert key in fault
