"""`verify` reads every byte of a run: each thing that is not what was committed is a finding."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from evertrain_flows.cli.app import main
from tests.hostile.whole_run import (
    BEST,
    EVALUATION,
    NEWEST,
    PREDICTIONS,
    STEPS,
    reseal,
    resealed,
    vouch_for,
    whole_run,
)
from tests.storage.samples import record
from train_core.client.checkpoints import verify_run
from train_core.storage.coordination.pins import pin
from train_core.storage.records.names import CheckpointName
from train_core.storage.records.tensor_file import lay_out
from train_core.storage.run_folder import RunFolder

MODEL = f"checkpoints/{NEWEST}/model.safetensors"
MANIFEST = f"checkpoints/{NEWEST}/manifest.json"
pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return whole_run(str(tmp_path_factory.mktemp("storage")))


@pytest.fixture
def folder(template: RunFolder, tmp_path: Path) -> RunFolder:
    shutil.copytree(template.url, tmp_path / "run")
    return RunFolder(str(tmp_path), "run")


def found_in(folder: RunFolder) -> dict[str, list[str]]:
    return {one.what: one.faults for one in verify_run(folder) if one.faults}


def replace(folder: RunFolder, key: str, make: Callable[[Path], None]) -> None:
    path = Path(folder.url, key)
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    make(path)


def garble(folder: RunFolder, key: str) -> None:
    data = bytearray(folder.store.read(key))
    data[len(data) // 2] ^= 1
    folder.store.write(key, bytes(data))


def a_device(folder: RunFolder, key: str) -> None:
    try:
        replace(folder, key, lambda path: os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5)))
    except PermissionError:
        pytest.skip("only root makes devices")


def vouched_for_as_nothing(
    spoil: Callable[[RunFolder, str], None],
) -> Callable[[RunFolder, str], None]:
    """What has no size, and is listed with none."""

    def spoil_it(folder: RunFolder, key: str) -> None:
        vouch_for(folder, NEWEST, key.rpartition("/")[2], b"")
        spoil(folder, key)

    return spoil_it


def a_pipe(folder: RunFolder, key: str) -> None:
    replace(folder, key, os.mkfifo)


def all_checkpoints_gone(folder: RunFolder, _: str) -> None:
    shutil.rmtree(Path(folder.url, "checkpoints"))


def copied_checkpoint(folder: RunFolder, _: str) -> None:
    above = Path(folder.url, "checkpoints")
    shutil.copytree(above / BEST, above / "step-00000170-a0001")


def listed_twice(field: str) -> Callable[[RunFolder, str], None]:
    def spoil(folder: RunFolder, key: str) -> None:
        reseal(folder, key, lambda content: content | {field: content[field] * 2})

    return spoil


def key_twice(folder: RunFolder, key: str) -> None:
    text = folder.store.read(key).replace(b'"step": 6', b'"step": 6, "step": 6')
    folder.store.write(key, resealed(text) if key.endswith("manifest.json") else text)


def true_for_a_number(folder: RunFolder, key: str) -> None:
    reseal(folder, key, lambda content: content | {"epoch": True})


def enormous(folder: RunFolder, key: str) -> None:
    reseal(folder, key, lambda content: content | {"step": 10**300})


def of_a_newer_evertrain(folder: RunFolder, key: str) -> None:
    reseal(folder, key, lambda content: content | {"format": 2})


def of_another_run(folder: RunFolder, key: str) -> None:
    folder.store.write(key, record("another").model_dump_json().encode())


def names_twice_in_a_header(folder: RunFolder, _: str) -> None:
    head = lay_out({"weight": ("I64", (1,)), "weighs": ("I64", (0,))}, {}).head
    text = head[8:].replace(b'"weighs"', b'"weight"')
    vouch_for(folder, NEWEST, "model.safetensors", head[:8] + text + bytes(8))


def a_line_of_another_step(folder: RunFolder, _: str) -> None:
    segment = folder.find(NEWEST).manifest.journal[-1].name
    line = b'{"step": 10000, "time": 1.0, "metrics": {}}\n'
    vouch_for(folder, NEWEST, segment, line)


def a_key_twice_in_a_line(folder: RunFolder, _: str) -> None:
    segment = folder.find(NEWEST).manifest.journal[-1].name
    line = b'{"step": 6, "time": 1.0, "metrics": {"a": 1, "a": 2}}\n'
    vouch_for(folder, NEWEST, segment, line)


def of_another_checkpoint(folder: RunFolder, key: str) -> None:
    path = Path(folder.url, key)
    shutil.copytree(path, path.with_name(path.name.replace(BEST, NEWEST)))


CASES: list[tuple[Callable[[RunFolder, str], None], str, str, str]] = [
    (garble, f"{PREDICTIONS}/part-00000.parquet", PREDICTIONS, "its digest is another"),
    (garble, f"{PREDICTIONS}/_manifest.json", PREDICTIONS, "it was altered"),
    (garble, f"{EVALUATION}/metrics.json", EVALUATION, "its digest is another"),
    (garble, f"{EVALUATION}/manifest.json", EVALUATION, "it was altered"),
    (garble, MODEL, NEWEST, "its digest is another"),
    (garble, MANIFEST, NEWEST, "damaged: "),
    *(
        (lambda folder, key: folder.store.delete(key), key, what, told)
        for key, what, told in (
            (f"{PREDICTIONS}/part-00000.parquet", PREDICTIONS, "is missing"),
            (f"{PREDICTIONS}/_manifest.json", PREDICTIONS, "never committed, or that is gone"),
            (PREDICTIONS, "report.json", "which is not there"),
            (f"{EVALUATION}/metrics.json", EVALUATION, "is missing"),
            (f"{EVALUATION}/manifest.json", EVALUATION, "never committed, or that is gone"),
            (MODEL, NEWEST, "is missing"),
            (MANIFEST, "report.json", "step 6, and the newest good checkpoint is of 4"),
            ("run.json", "run.json", "does not exist"),
        )
    ),
    *(
        (lambda folder, key: folder.store.write(key, b"garbage"), key, key, "not ")
        for key in ("run.json", "report.json", "asked/0001.json", "lease/0001.json")
    ),
    (lambda f, key: f.store.write(key, b"{"), "lease/0001-beat.json", "lease/0001.json", "not a"),
    (lambda f, key: f.store.write(key, b"{"), "lease/0001-seal.json", "lease", "not a"),
    (lambda f, key: f.store.write(key, b'{"train": 1}'), "report.json", "report.json", "best.name"),
    (of_another_run, "run.json", "run.json", "is that of run 'another'"),
    (all_checkpoints_gone, "", "report.json", "the newest good checkpoint is of 0"),
    (copied_checkpoint, "", "step-00000170-a0001", f"has the manifest of {BEST}"),
    (of_another_checkpoint, PREDICTIONS, f"predictions/{NEWEST}-0123abcd", "a result of"),
    (lambda folder, key: replace(folder, key, os.mkdir), MANIFEST, NEWEST, "is a folder"),
    (a_pipe, MANIFEST, NEWEST, "is a pipe"),
    (a_pipe, MODEL, NEWEST, "is a pipe"),
    (vouched_for_as_nothing(a_pipe), MODEL, NEWEST, "is a pipe"),
    (a_device, MANIFEST, NEWEST, "is a device"),
    (a_device, MODEL, NEWEST, "is a device"),
    (vouched_for_as_nothing(a_device), MODEL, NEWEST, "is a device"),
    (listed_twice("files"), MANIFEST, NEWEST, "is listed twice"),
    (listed_twice("journal"), MANIFEST, NEWEST, "is listed twice"),
    (key_twice, MANIFEST, NEWEST, "the key 'step' is there twice"),
    (key_twice, "report.json", "report.json", "the key 'step' is there twice"),
    (names_twice_in_a_header, "", NEWEST, "the key 'weight' is there twice"),
    (a_key_twice_in_a_line, "", NEWEST, "the key 'a' is there twice"),
    (a_line_of_another_step, "", NEWEST, "has an entry of step 10000"),
    (true_for_a_number, MANIFEST, NEWEST, "epoch: "),
    (enormous, MANIFEST, NEWEST, "step: "),
    (of_a_newer_evertrain, MANIFEST, NEWEST, "newer: "),
]


@pytest.mark.promise("verified", "verify-code")
@pytest.mark.parametrize(
    ("spoil", "key", "what", "told"),
    CASES,
    ids=[f"{number}-{key or what}" for number, (_, key, what, _) in enumerate(CASES)],
)
def test_what_is_not_what_was_committed_is_a_finding(
    folder: RunFolder,
    capsys: pytest.CaptureFixture[str],
    spoil: Callable[[RunFolder, str], None],
    key: str,
    what: str,
    told: str,
) -> None:
    spoil(folder, key)
    found = found_in(folder)
    assert any(told in fault for fault in found.get(what, [])), found
    if key == "run.json" and not folder.exists():
        return  # what has no run.json is no run to the command
    with pytest.raises(SystemExit, match="1"):
        main(["verify", folder.name, "--storage", folder.storage, "--json"])
    shown = capsys.readouterr()
    rows = json.loads(shown.out)
    faults = [fault for part in found.values() for fault in part]
    assert [row["verdict"] for row in rows if row["verdict"] != "good"] == faults
    assert shown.err.count("\n") == 1


def test_a_whole_run_has_no_finding(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert found_in(folder) == {}
    assert main(["verify", folder.name, "--storage", folder.storage, "--json"]) == 0
    assert {row["what"] for row in json.loads(capsys.readouterr().out)} == {
        *("run.json", "report.json", EVALUATION, PREDICTIONS),
        *(str(CheckpointName(step, 1)) for step in STEPS),
    }


def test_what_a_process_left_that_died_is_no_finding(folder: RunFolder) -> None:
    pin(folder.store, folder.find(BEST).name, "infer-0123abcd", "infer")
    folder.store.write(f"predictions/{BEST}-99999999/part-00000.parquet", b"half")
    assert found_in(folder) == {}


def test_one_checkpoint_is_verified_alone(folder: RunFolder) -> None:
    garble(folder, MODEL)
    folder.store.write("report.json", b"garbage")
    for name, is_good in ((BEST, True), (NEWEST, False)):
        (only,) = verify_run(folder, name)
        assert (only.what, not only.faults) == (name, is_good)
