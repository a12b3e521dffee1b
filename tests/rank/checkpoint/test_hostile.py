"""Files that an enemy put into a run folder: refused by a clear error, and nothing is executed."""

from __future__ import annotations

import io
import json
import pickle
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from fsspec.core import url_to_fs
from hypothesis import given, settings
from hypothesis import strategies as st

from evertrain_flows.cli.app import main
from tests.marks import slow
from tests.rank.alone import run
from tests.rank.digests import digest_of_training
from tests.storage.samples import damaged
from train_core.config import TrainConfig
from train_core.errors import CheckpointError, EvertrainError
from train_core.policy.checkpoints.retention import RetentionRules
from train_core.rank.checkpoint.reader import load_state
from train_core.scoring.evaluate import load_model
from train_core.storage.cleanup.orphans import delete_orphans_of_the_dead
from train_core.storage.cleanup.prune import Pruning
from train_core.storage.coordination import lease
from train_core.storage.coordination.pins import pin
from train_core.storage.records.manifest import FileEntry
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import RunWriter, begin_attempt, quarantine
from train_core.storage.verification.checkpoints import faults
from train_core.tools.compare import compare_runs

STEPS = (2, 4, 5, 6, 8, 10)
OLDEST, NEWEST = (f"checkpoints/step-{step:08d}-a0001" for step in (STEPS[0], STEPS[-1]))
CONFIG = {
    "epochs": 2,
    "num_shards": 2,
    "checkpoint_every_steps": 2,
    "checkpoint_backpressure": "wait",
    "keep_last": 99,
}
PARTS = (
    *("manifest.json", "state.json", "model.safetensors", "workload.safetensors"),
    *("optimizer-00001-of-00002.safetensors", "optimizer-00002-of-00002.safetensors"),
    "optimizer.safetensors.index.json",
)
NEWEST_FILES = [f"{NEWEST}/{name}" for name in PARTS]
JOURNAL_FILES = [
    f"journal/steps-{first:08d}-{last:08d}-a0001.jsonl" for first, last in ((1, 8), (9, 10))
]
MARK = "checkpoints/step-00000004-a0001/quarantined.json"
PIN = "pins/step-00000002-a0001/infer.json"
LEASE_FILES = [f"lease/0001{end}.json" for end in ("", "-beat", "-seal")]
EVERY_FILE = [
    *("run.json", "report.json", "live.json", PIN, MARK),
    *LEASE_FILES,
    *JOURNAL_FILES,
    *NEWEST_FILES,
]
FOLDERS = ["checkpoints", "journal", "lease", "pins", NEWEST, OLDEST]
QUICK = {
    *("run.json", "report.json", LEASE_FILES[0], JOURNAL_FILES[-1], "checkpoints", "pins"),
    *(f"{NEWEST}/{name}" for name in ("manifest.json", "state.json", "model.safetensors")),
}
"""Of every kind of file one that `make test` attacks; `make test-all` attacks all."""


def quick_ones(places: list[str]) -> list[Any]:
    """The places, as parameters of a test."""
    return [place if place in QUICK else slow(place) for place in places]


class Bomb:
    """Its pickle makes a folder when it is loaded."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return Path.mkdir, (self.marker,)


def bomb(marker: Path, file: str) -> bytes:
    """A pickle as it is found in the wild: weights as torch saves them, else plain."""
    if not file.endswith(".safetensors"):
        return pickle.dumps(Bomb(marker))
    saved = io.BytesIO()
    torch.save({"weights": Bomb(marker)}, saved)
    return saved.getvalue()


def on_both(files: list[str]) -> list[Any]:
    """Each file on a disk and on S3, for the fixture `template` and an argument `file`."""
    s3 = [pytest.mark.s3]
    return [
        *(
            pytest.param(
                "local",
                file,
                id=f"local-{file}",
                marks=() if file in QUICK else pytest.mark.slow,
            )
            for file in files
        ),
        *(
            pytest.param(
                "s3",
                file,
                id=f"s3-{file}",
                marks=s3 if file.endswith("/model.safetensors") else [*s3, pytest.mark.slow],
            )
            for file in files
        ),
    ]


def any_place(
    storage: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> str:
    if storage == "s3":
        return f"{request.getfixturevalue('object_store')}/{uuid.uuid4().hex}"
    return str(tmp_path_factory.mktemp("storage"))


def put(folder: RunFolder, file: str, data: bytes) -> None:
    """As an enemy does it: past evertrain."""
    files, path = url_to_fs(f"{folder.url}/{file}")
    files.pipe_file(path, data)


def get(folder: RunFolder, file: str) -> bytes:
    files, path = url_to_fs(f"{folder.url}/{file}")
    return bytes(files.cat_file(path))


def copy_of(folder: RunFolder, storage: str) -> RunFolder:
    """A copy to spoil."""
    files, there = url_to_fs(folder.url)
    here = url_to_fs(storage)[1]
    for path in files.find(there):
        copied = f"{here}/run{path.removeprefix(there)}"
        files.makedirs(copied.rpartition("/")[0], exist_ok=True)
        files.cp_file(path, copied)
    return RunFolder(storage, "run")


@pytest.fixture(scope="module", params=["local"])
def template(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run that has one of each kind of file that is read again."""
    folder = RunFolder(any_place(request.param, request, tmp_path_factory), "run")
    held = begin_attempt(folder)
    run(folder, **CONFIG)
    held.release()
    first, second = folder.checkpoints()[:2]
    folder.store.write(
        "report.json",
        json.dumps({"best": {"name": str(first.name)}, "train": {"step": 10}}).encode(),
    )
    pin(folder.store, first.name, "infer", "a test", is_lasting=True)
    quarantine(folder, second.name, "a test")
    return folder


@pytest.fixture
def folder(template: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy to spoil, on the storage that the template is on."""
    if "://" in template.url:
        return copy_of(template, f"{template.storage}-{uuid.uuid4().hex}")
    return copy_of(template, str(tmp_path / "storage"))


@pytest.fixture(scope="module")
def reference(template: RunFolder) -> str:
    return digest_of_training(template)


def vouch_for(folder: RunFolder, file: str) -> None:
    """Have the manifests list the file as it is now."""
    data = get(folder, file)
    for checkpoint in folder.checkpoints():

        def listed(entries: tuple[FileEntry, ...], place: str) -> tuple[FileEntry, ...]:
            return tuple(
                FileEntry.of(entry.name, data) if file == f"{place}/{entry.name}" else entry
                for entry in entries
            )

        manifest = checkpoint.manifest
        changed = {
            "files": listed(manifest.files, checkpoint.key),
            "journal": listed(manifest.journal, "journal"),
        }
        altered = manifest.model_copy(update=changed)
        folder.store.write(f"{checkpoint.key}/manifest.json", altered.to_json())


def drive_and_delete(folder: RunFolder) -> None:
    """What a driver and `evertrain prune` do."""
    rules = RetentionRules(monitor="validation/loss", monitor_order="min", keep_last=1, keep_best=1)
    held = begin_attempt(folder)
    with lease.alive_until_released(held):
        delete_orphans_of_the_dead(RunWriter(folder, held.attempt))
        Pruning(folder, rules, datetime.now(UTC), tuple).carry_out(held.attempt)


def everything(folder: RunFolder) -> Iterator[Callable[[], object]]:
    """Looking at the run, evaluating it, going on with it, and deleting in it."""
    config = TrainConfig(workload="tests.rank.tiny:Tiny", gpus_per_worker=0, **CONFIG)
    yield folder.record
    yield folder.report
    yield folder.live
    yield folder.quarantined
    yield folder.damaged
    yield lambda: [faults(folder, one) for one in folder.checkpoints()]
    yield lambda: lease.holder_of(folder.store)
    for key in (OLDEST, NEWEST):
        name = key.rpartition("/")[2]
        yield partial(load_model, folder.url, config, name)
    yield partial(compare_runs, folder, folder)
    yield partial(run, folder, attempt=2, **CONFIG)
    yield partial(drive_and_delete, folder)
    yield lambda: folder.checkpoints() and digest_of_training(folder)


def met_by_all(folder: RunFolder) -> str:
    """Do everything, and say what came of it; all errors are evertrain's own."""
    load_model.cache_clear()
    said = []
    for act in everything(folder):
        try:
            said.append(str(act()))
        except EvertrainError as error:
            said.append(f"{type(error).__name__}: {error}")
    return "\n".join(said)


def look_at(folder: RunFolder) -> None:
    """The commands that look: each ends with an exit code, none with a traceback."""
    storage = ("--storage", folder.storage)
    for command in (
        ["ls", folder.storage],
        ["ls", folder.url],
        ["show", "run", *storage],
        ["show", f"run/{NEWEST}", *storage],
        ["verify", "run", *storage],
        ["runs", "status", "run", *storage],
    ):
        try:
            code = main(command)
        except SystemExit as ended:
            code = ended.code
        assert code in (0, 1, 2)


def tree(folder: Path) -> dict[str, bytes]:
    """All files below, links aside."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


def test_the_run_has_every_kind_of_file(template: RunFolder) -> None:
    assert set(EVERY_FILE) <= tree(Path(template.url)).keys()
    assert {one.key for one in template.checkpoints()} >= {OLDEST, NEWEST}
    (newest,) = (one for one in template.checkpoints() if one.key == NEWEST)
    assert {entry.name for entry in newest.manifest.files} | {"manifest.json"} == set(PARTS)


def test_the_bombs_of_these_tests_go_off(tmp_path: Path) -> None:
    for file in ("a.json", "a.safetensors"):
        data = io.BytesIO(bomb(tmp_path / file, file))
        if file.endswith(".json"):
            pickle.load(data)
        else:
            torch.load(data, weights_only=False)
        assert (tmp_path / file).exists()


@pytest.mark.promise("no-pickle")
@pytest.mark.parametrize(("template", "file"), on_both(EVERY_FILE), indirect=["template"])
def test_a_pickle_in_the_place_of_a_file_is_never_loaded(
    folder: RunFolder, reference: str, file: str, tmp_path: Path
) -> None:
    put(folder, file, bomb(tmp_path / "marker", file))
    look_at(folder)
    said = met_by_all(folder)
    assert not (tmp_path / "marker").exists()
    if file in NEWEST_FILES:
        # It went on from an older one, to the same end.
        assert said.endswith(reference)
        assert NEWEST.rpartition("/")[2] in folder.quarantined()
    elif file not in ("live.json", PIN, MARK):
        assert f"{folder.url}/{file}" in said or f"{file}:" in said


@pytest.mark.promise("no-pickle")
@pytest.mark.parametrize(
    ("template", "file"), on_both([*NEWEST_FILES[1:], *JOURNAL_FILES]), indirect=["template"]
)
def test_a_pickle_that_a_manifest_vouches_for_is_never_loaded(
    folder: RunFolder, reference: str, file: str, tmp_path: Path
) -> None:
    put(folder, file, bomb(tmp_path / "marker", file))
    vouch_for(folder, file)
    look_at(folder)
    said = met_by_all(folder)
    assert not (tmp_path / "marker").exists()
    if file in JOURNAL_FILES:
        assert f"CheckpointError: {folder.url}/{file}" in said
        assert "not a segment of the journal" in said
    else:
        assert said.endswith(reference)
        # No training reads the index: it is for other programs.
        was_read = not file.endswith("index.json")
        assert (NEWEST.rpartition("/")[2] in folder.quarantined()) == was_read


@pytest.mark.promise("verified")
def test_a_run_does_not_go_on_from_a_copied_checkpoint(folder: RunFolder, reference: str) -> None:
    alias = "step-00000011-a0001"
    shutil.copytree(Path(folder.url, OLDEST), Path(folder.url, "checkpoints", alias))
    look_at(folder)
    assert met_by_all(folder).endswith(reference)
    assert "has the manifest of step-00000002-a0001" in folder.quarantined()[alias]


@pytest.mark.promise("untrusted-files")
@pytest.mark.parametrize("place", quick_ones([*EVERY_FILE, *FOLDERS]))
def test_a_link_out_of_the_run_folder_is_not_followed(
    folder: RunFolder, place: str, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    shutil.copytree(folder.url, outside)
    before = tree(outside)
    path = Path(folder.url, place)
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    path.symlink_to(outside / place)
    if place == "live.json":
        assert folder.live() is None
    look_at(folder)
    said = met_by_all(folder)
    if place not in ("live.json", PIN):
        assert re.search(rf"link {path}|{path}.* a link in it leads", said)
    folder.store.delete("")
    assert tree(outside) == before


@pytest.fixture(scope="module")
def to_damage(template: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A copy in which one file at a time is damaged, and mended again."""
    if "://" in template.url:
        return copy_of(template, f"{template.storage}-to-damage")
    return copy_of(template, str(tmp_path_factory.mktemp("to_damage")))


TO_DAMAGE = [*NEWEST_FILES, *JOURNAL_FILES]


@pytest.mark.promise("verified")
@pytest.mark.parametrize("file", quick_ones(TO_DAMAGE))
@given(drawn=st.data())
def test_no_damage_to_a_checkpoint_goes_unnoticed(
    to_damage: RunFolder, file: str, drawn: st.DataObject
) -> None:
    damage_is_noticed(to_damage, file, drawn)


@pytest.mark.s3
@pytest.mark.slow
@pytest.mark.parametrize("template", ["s3"], indirect=True)
@pytest.mark.parametrize("file", TO_DAMAGE)
@settings(max_examples=10)
@given(drawn=st.data())
def test_no_damage_on_s3_goes_unnoticed(
    to_damage: RunFolder, file: str, drawn: st.DataObject
) -> None:
    damage_is_noticed(to_damage, file, drawn)


def damage_is_noticed(to_damage: RunFolder, file: str, drawn: st.DataObject) -> None:
    whole = get(to_damage, file)
    put(to_damage, file, drawn.draw(damaged(whole)))
    try:
        found = {one.key: one for one in to_damage.checkpoints()}
        if file.endswith("manifest.json"):
            assert NEWEST not in found
            assert NEWEST.rpartition("/")[2] in to_damage.damaged()
            return
        (fault,) = faults(to_damage, found[NEWEST])
        assert fault.startswith(file)
        if file in NEWEST_FILES:
            with pytest.raises(CheckpointError, match=file):
                load_state(to_damage.store, found[NEWEST])
    finally:
        put(to_damage, file, whole)
