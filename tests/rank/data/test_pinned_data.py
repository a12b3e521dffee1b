"""The record is true: whatever comes to the data meanwhile, what was recorded is what is read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.rank.digests import digest_of_training, journal_of
from tests.rank.growing import add_files, write_rows, write_splits
from tests.ranks.without_ray import stages_without_ray
from train_core.client.verify_resume import VerifyResumeRequest, verify_resume
from train_core.config import TrainConfig
from train_core.datasets.protocols import SPLITS
from train_core.datasets.sources import PinnedFiles
from train_core.driver.preparing.preflight import check, new_record
from train_core.errors import ConfigError, DataError, WorkloadError
from train_core.loading import load_workload
from train_core.rank.data.inputs import open_input
from train_core.rank.data.recorded_workload import load_recorded, newest_files, with_monitor
from train_core.rank.distributed.group import Group
from train_core.rank.loop import Trainer
from train_core.requests import DriverRequest
from train_core.scoring.evaluate import dataset_of, load_model, measure_one_shard
from train_core.storage.fork import fork_checkpoint
from train_core.storage.objects.digest_algorithm import digest_of
from train_core.storage.objects.store import Store
from train_core.storage.records.data_files import FileList
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import create_run

NAMED, LISTING = "tests.rank.growing:Named", "tests.rank.growing:Listing"


@pytest.fixture(autouse=True)
def fresh_process() -> Iterator[None]:
    """What a process keeps for its next task, another process would not have."""
    yield
    load_model.cache_clear()
    dataset_of.cache_clear()


@pytest.fixture
def data(storage_url: str) -> str:
    write_splits(f"{storage_url}/data")
    return f"{storage_url}/data"


@pytest.fixture
def local(tmp_path: Path) -> str:
    write_splits(f"{tmp_path}/data")
    return f"{tmp_path}/data"


def asked(folder: RunFolder, data: str, workload: str = NAMED, **config: Any) -> DriverRequest:
    given = {"batch_size": 32, "eval_batch_size": 16, "gpus_per_worker": 0, "epochs": 1} | config
    settings = {"data": data}
    return DriverRequest(
        storage=folder.storage,
        run=folder.name,
        config=with_monitor(TrainConfig(workload=workload, settings=settings, **given)),
    )


def prepare(folder: RunFolder, data: str, workload: str = NAMED, **config: Any) -> TrainConfig:
    """What the driver does before any compute: the run has its record."""
    driver = stages_without_ray(asked(folder, data, workload, **config))
    driver.prepare()
    driver.close("FINISHED")
    return driver.config


def train(folder: RunFolder, config: TrainConfig) -> None:
    Trainer(folder, with_monitor(config), 1, Group.current()).run()


def evaluate(folder: RunFolder, config: TrainConfig, split: Any) -> int:
    """How many samples a task of the evaluation measures."""
    name = str(folder.checkpoints()[-1].name)
    return measure_one_shard(folder.url, config, name, split, 0, 0)[0]


@pytest.mark.promise("sources")
def test_what_arrives_before_and_while_it_trains_is_neither_trained_nor_tested_on(
    data: str, tmp_path: Path
) -> None:
    still, moving = (RunFolder(str(tmp_path / "runs"), name) for name in ("still", "moving"))
    train(still, prepare(still, data))
    expected = evaluate(still, still.record().config, "test")
    config = prepare(moving, data)
    add_files(data)
    train(moving, config)
    write_rows(data, "test", "day-3.npy", 99)
    assert digest_of_training(moving) == digest_of_training(still)
    assert journal_of(moving) == journal_of(still)
    assert evaluate(moving, config, "test") == expected == 40
    workload = load_recorded(moving, config)
    assert {split: open_input(split, workload).num_rows for split in SPLITS} == {
        split: one["samples"] for split, one in moving.record().datasets.items()
    }
    assert len(workload.example()["x"]) == 2


def test_a_run_is_continued_on_a_folder_that_only_grew(local: str, tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path), "run")
    prepare(folder, local)
    add_files(local)
    request = asked(folder, local)
    assert check(folder, request).prepared.num_samples == {
        "train": 150,
        "validation": 70,
        "test": 40,
    }


@pytest.mark.promise("record")
def test_the_record_says_every_file_with_size_and_digest(data: str, tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path), "run")
    prepare(folder, data)
    record = folder.record()
    content = Store(data).read("train/day-1.npy")
    source = record.sources["train"]
    assert source.url == Store(f"{data}/train").url
    assert (source.num_files, source.size_bytes) == (1, len(content))
    listed = folder.files_of(record)
    assert listed is not None
    (file,) = listed.sources["train"].files
    assert (file.name, file.size_bytes) == ("day-1.npy", len(content))
    assert file.digest == digest_of(content)
    assert file.version


def test_what_is_recorded_names_the_same_content_wherever_it_lies(
    local: str, tmp_path: Path
) -> None:
    write_splits(f"{tmp_path}/elsewhere")
    one, other = (RunFolder(str(tmp_path), name) for name in ("one", "other"))
    prepare(one, local)
    prepare(other, f"{tmp_path}/elsewhere")
    digests = [run.record().sources["train"].digest for run in (one, other)]
    assert digests[0] == digests[1] != one.record().sources["test"].digest


@pytest.mark.promise("changed-data")
@pytest.mark.parametrize("workload", [NAMED, "tests.rank.growing:Opened"])
def test_a_file_that_was_replaced_ends_every_process_with_what_was_and_what_is(
    data: str, tmp_path: Path, workload: str
) -> None:
    folder = RunFolder(str(tmp_path / "runs"), "run")
    config = prepare(folder, data, workload)
    train(folder, config)
    for split in SPLITS:
        write_rows(data, split, "day-1.npy", {"test": 40, "train": 150}.get(split, 70), seed=9)
    said = r"day-1\.npy is not the file that was recorded: its digest is .*the run recorded "
    with pytest.raises(DataError, match="train/" + said):
        Trainer(folder, with_monitor(config), 2, Group.current())
    with pytest.raises(DataError, match="test/" + said):
        evaluate(folder, config, "test")
    with pytest.raises(DataError, match="test/" + said):
        open_input("test", load_recorded(folder, config))
    with pytest.raises(DataError, match="bring it back as it was, or start a run under another"):
        check(folder, asked(folder, data, workload))


def test_a_file_that_is_gone_or_has_another_size_is_named(data: str, tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path / "runs"), "run")
    config = prepare(folder, data)
    Store(data).delete("train/day-1.npy")
    with pytest.raises(DataError, match=r"train/day-1\.npy is missing, the run recorded \d+ bytes"):
        Trainer(folder, with_monitor(config), 1, Group.current())
    write_rows(data, "train", "day-1.npy", 151, seed=1)
    with pytest.raises(DataError, match=r"day-1\.npy .*: it has 4960 bytes, the run recorded 4928"):
        Trainer(folder, with_monitor(config), 1, Group.current())


def test_a_file_that_was_written_again_with_the_same_bytes_is_the_same(
    data: str, tmp_path: Path
) -> None:
    folder = RunFolder(str(tmp_path / "runs"), "run")
    config = prepare(folder, data)
    write_splits(data)
    train(folder, config)


def test_a_file_changed_under_its_old_time_is_found_where_it_is_read(
    local: str, tmp_path: Path
) -> None:
    folder = RunFolder(str(tmp_path), "run")
    config = prepare(folder, local)
    file = Path(local, "train/day-1.npy")
    before = file.stat()
    write_rows(local, "train", "day-1.npy", 150, seed=9)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(DataError, match="its digest is"):
        Trainer(folder, with_monitor(config), 1, Group.current())


@pytest.mark.promise("changed-data")
@pytest.mark.parametrize(
    ("workload", "said"),
    [(LISTING, "samples was 150, is 180"), ("tests.rank.growing:Counting", "samples was 150")],
)
def test_a_workload_that_lists_files_itself_is_checked_where_it_trains(
    local: str, tmp_path: Path, workload: str, said: str
) -> None:
    folder = RunFolder(str(tmp_path), "run")
    config = prepare(folder, local, workload)
    assert folder.record().sources == {}
    add_files(local)
    with pytest.raises(DataError, match=f"train split is not what run 'run' was begun .*{said}"):
        Trainer(folder, with_monitor(config), 1, Group.current())


def test_a_workload_that_lists_files_itself_is_checked_where_it_is_evaluated_and_scores(
    local: str, tmp_path: Path
) -> None:
    folder = RunFolder(str(tmp_path), "run")
    config = prepare(folder, local, LISTING)
    train(folder, config)
    assert evaluate(folder, config, "test") == 40
    dataset_of.cache_clear()
    write_rows(local, "test", "day-1.npy", 40, seed=9)
    said = "test split is not what run 'run' was begun with: digest was"
    with pytest.raises(DataError, match=said):
        evaluate(folder, config, "test")
    with pytest.raises(DataError, match=said):
        open_input("test", load_recorded(folder, config))
    with pytest.raises(DataError, match=said):
        check(folder, asked(folder, local, LISTING))


def test_files_that_are_asked_for_too_early_are_refused(local: str, tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path), "run")
    with pytest.raises(WorkloadError, match=r"calls files\(\) in __init__"):
        check(folder, asked(folder, local, "tests.rank.growing:Hasty"))


def test_outside_of_a_run_the_files_are_those_that_are_there(local: str) -> None:
    workload = load_workload(NAMED, {"data": local})
    assert len(workload.dataset("train")) == 150
    add_files(local)
    assert len(load_workload(NAMED, {"data": local}).dataset("train")) == 180


def test_a_fork_reads_what_its_origin_recorded(local: str, tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path), "run")
    config = prepare(folder, local)
    train(folder, config)
    fork = fork_checkpoint(folder, folder.checkpoints()[-1], "fork")
    add_files(local)
    assert [len(load_recorded(fork, config).dataset(split)) for split in SPLITS] == [150, 70, 40]


def test_a_damaged_list_of_files_is_refused(local: str, tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path), "run")
    config = prepare(folder, local)
    (name,) = folder.store.names("data")
    content = folder.store.read(f"data/{name}")
    folder.store.write(f"data/{name}", content.replace(b"day-1", b"day-2"))
    with pytest.raises(ValueError, match="digest that is not the committed one"):
        Trainer(folder, with_monitor(config), 1, Group.current())


def test_files_of_an_earlier_run_are_hashed_again_where_versions_are_times(
    data: str, tmp_path: Path
) -> None:
    """A digest that nobody would compute shows whose it is."""
    in_memory = f"memory:/{tmp_path}"
    write_splits(in_memory)
    for place in (data, in_memory):
        first = PinnedFiles.listed({"train": f"{place}/train"}).recorded
        content = first.to_json().decode()
        (file,) = first.sources["train"].files
        altered = FileList.model_validate_json(content.replace(file.digest, "0" * 64))
        write_rows(place, "train", "day-2.npy", 30)
        listed = PinnedFiles.listed({"train": f"{place}/train"}, altered).recorded
        found = {one.name: one.digest for one in listed.sources["train"].files}
        new = digest_of(Store(place).read("train/day-2.npy"))
        old = "0" * 64 if place.startswith("s3:") else file.digest
        assert found == {"day-1.npy": old, "day-2.npy": new}


def test_a_new_run_finds_the_files_of_the_newest_one_of_its_workload(
    local: str, tmp_path: Path
) -> None:
    storage = str(tmp_path / "runs")
    assert newest_files(storage, NAMED) is None
    prepare(RunFolder(storage, "z-first"), local)
    add_files(local)
    prepare(RunFolder(storage, "a-second"), local)
    prepare(RunFolder(storage, "other"), local, LISTING)
    Store(storage).write("broken/run.json", b"{")
    found = newest_files(storage, NAMED)
    assert found is not None
    assert [one.name for one in found.sources["train"].files] == ["day-1.npy", "day-2.npy"]


@pytest.mark.slow
def test_a_proof_of_a_workload_that_names_its_files_is_not_disturbed(
    local: str, tmp_path: Path
) -> None:
    request = VerifyResumeRequest(
        workload="tests.rank.growing:Overnight",
        settings={"data": local},
        steps=8,
        workers=1,
        storage=str(tmp_path / "proof"),
    )
    assert verify_resume(request, tmp_path).identical


def test_a_login_that_is_not_recorded_is_asked_for_again(local: str, tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path), "run")
    request = asked(folder, local)
    files = PinnedFiles.listed({"train": f"{local}/train"}).recorded
    url = "ftp://me:s3cret@host/data"
    there = {"train": files.sources["train"].model_copy(update={"url": url, "folder": url})}
    checked = check(folder, request)
    remote = FileList(sources=there)
    record = new_record(request, request.config, checked.datasets, None, remote)
    create_run(folder, record, remote)
    assert b"s3cret" not in folder.store.read("run.json") + remote.to_json()
    workload = load_recorded(folder, request.config)
    said = r"the login in the URL of source 'train' \(ftp://\*\*\*@host/data\) is not recorded"
    with pytest.raises(ConfigError, match=said):
        workload.files("train")
    # What needs none of those files needs no login.
    rows = pa.table({"x": [[0.0] * 8], "label": [0]})
    pq.write_table(rows, tmp_path / "new.parquet")
    assert open_input(str(tmp_path / "new.parquet"), workload).num_rows == 1
