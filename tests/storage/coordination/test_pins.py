from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

from tests.commands import said_by, talking
from tests.storage.samples import commit, manifest, save
from train_core.config import TrainConfig
from train_core.errors import StorageError
from train_core.storage.cleanup.dead_scorers import clearing_dead_scorers
from train_core.storage.cleanup.delete_checkpoint import delete_unless_pinned
from train_core.storage.cleanup.orphans import find_orphans
from train_core.storage.cleanup.retention_after_commit import delete_superseded
from train_core.storage.coordination import job_mailbox, pins
from train_core.storage.coordination.holder import Holder
from train_core.storage.coordination.job_mailbox import THE_JOB, Mailbox
from train_core.storage.objects.retry_policy import SHORT, RetryPolicy
from train_core.storage.objects.store import Store
from train_core.storage.records.names import CALLS, PINS, PREDICTIONS, CheckpointName, JobName
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import RunWriter, begin_attempt
from train_core.timing import CoordinationTiming

STRICT = TrainConfig(monitor="validation/accuracy", keep_last=1, keep_best=1)
AT_ONCE = CoordinationTiming(mailbox_standstill_s=0)

READER = """
import sys
from train_core.storage.records.names import CheckpointName
from train_core.storage.coordination.pins import pinned
from train_core.storage.run_folder import RunFolder
folder = RunFolder.at(sys.argv[1])
with pinned(folder.store, [CheckpointName.parse(sys.argv[2])], "infer"):
    print("pinned", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(str(tmp_path), "run")


@pytest.fixture
def any_folder(storage_url: str) -> RunFolder:
    """On a disk, then on S3: for what depends on the storage."""
    return RunFolder(storage_url, "run")


def kept(folder: RunFolder) -> list[int]:
    return [one.name.step for one in folder.checkpoints()]


def three(folder: RunFolder) -> list[CheckpointName]:
    """Three of the same metric, of which the rules of STRICT keep the last."""
    begin_attempt(folder)
    return [commit(folder, step, attempt=1) for step in (1, 2, 3)]


@pytest.mark.promise("pinned-is-kept")
def test_what_is_read_stays_and_goes_when_it_was_read(any_folder: RunFolder) -> None:
    first, _, _ = three(any_folder)
    with pins.pinned(any_folder.store, [first], "infer"):
        [found] = pins.valid_pins(any_folder.store)
        assert found.checkpoint == str(first)
        assert found.who.startswith("infer-")
        delete_superseded(RunWriter(any_folder, 1), STRICT)
        assert kept(any_folder) == [1, 3]
    assert pins.valid_pins(any_folder.store) == []
    delete_superseded(RunWriter(any_folder, 1), STRICT)
    assert kept(any_folder) == [3]
    assert str(first) not in any_folder.store.names(PINS)


def test_who_is_in_a_hurry_deletes_no_further_checkpoint(folder: RunFolder) -> None:
    three(folder)
    answers = iter([False, False, True])
    delete_superseded(RunWriter(folder, 1), STRICT, is_hurried=lambda: next(answers, True))
    assert kept(folder) == [2, 3]
    assert pins.valid_pins(folder.store) == []
    delete_superseded(RunWriter(folder, 1), STRICT)
    assert kept(folder) == [3]


def test_a_reader_that_fails_lets_go(folder: RunFolder) -> None:
    first, second, _ = three(folder)

    def read() -> None:
        with pins.pinned(folder.store, [first, second], "infer"):
            assert len(pins.valid_pins(folder.store)) == 2
            raise InterruptedError

    with pytest.raises(InterruptedError):
        read()
    assert pins.valid_pins(folder.store) == []


def test_two_readers_of_one_checkpoint_do_not_disturb_each_other(folder: RunFolder) -> None:
    first, _, _ = three(folder)
    with pins.pinned(folder.store, [first], "infer"):
        with pins.pinned(folder.store, [first], "infer"):
            assert len(pins.valid_pins(folder.store)) == 2
        delete_superseded(RunWriter(folder, 1), STRICT)
    assert kept(folder) == [1, 3]


def test_the_pin_of_a_killed_process_of_this_machine_does_not_count(folder: RunFolder) -> None:
    first, _, _ = three(folder)
    with talking(READER, folder.url, str(first)) as reader:
        assert said_by(reader) == "pinned"
        delete_superseded(RunWriter(folder, 1), STRICT)
        assert kept(folder) == [1, 3]
        reader.kill()
        reader.wait()
        assert len(folder.store.names(f"{PINS}/{first}")) == 1
        delete_superseded(RunWriter(folder, 1), STRICT)
    assert kept(folder) == [3]


def elsewhere(attempt: int) -> bytes:
    holder = Holder(host="far", machine="another", pid=4711, process_started=0.0, token="t")
    pin = pins.Pin(why="infer", created_at="2026-01-01T00:00:00Z", holder=holder, attempt=attempt)
    return pin.model_dump_json().encode()


def test_the_pin_of_another_machine_counts_as_nobody_can_look(folder: RunFolder) -> None:
    first, _, _ = three(folder)
    folder.store.write(f"{PINS}/{first}/infer-1.json", elsewhere(attempt=0))
    delete_superseded(RunWriter(folder, 1), STRICT)
    assert kept(folder) == [1, 3]
    [found] = pins.valid_pins(folder.store)
    assert found.is_elsewhere
    assert "process 4711 on far" in str(found)


def test_the_pin_of_an_attempt_ends_when_a_newer_one_has_the_run(folder: RunFolder) -> None:
    first, _, _ = three(folder)
    folder.store.write(f"{PINS}/{first}/evaluate-1.json", elsewhere(attempt=1))
    delete_superseded(RunWriter(folder, 1), STRICT)
    assert kept(folder) == [1, 3]
    folder.store.write("lease/0002.json", folder.store.read("lease/0001.json"))
    delete_superseded(RunWriter(folder, 2), STRICT)
    assert kept(folder) == [3]


@pytest.mark.promise("pinned-is-kept")
@pytest.mark.parametrize("content", [b"", b"{", b"{}", b"mine", b'{"why": 1}'])
def test_what_cannot_be_read_as_a_pin_keeps_the_checkpoint(
    folder: RunFolder, content: bytes
) -> None:
    first, _, _ = three(folder)
    folder.store.write(f"{PINS}/{first}/Somebody's note.txt", content)
    delete_superseded(RunWriter(folder, 1), STRICT)
    assert kept(folder) == [1, 3]


def test_a_lasting_pin_outlives_its_process_and_is_written_once(any_folder: RunFolder) -> None:
    first, _, _ = three(any_folder)
    key = pins.pin(any_folder.store, first, pins.MLFLOW_MODEL, "its model", is_lasting=True)
    written = any_folder.store.read(key)
    assert json.loads(written)["holder"] is None
    assert pins.pin(any_folder.store, first, pins.MLFLOW_MODEL, "again", is_lasting=True) == key
    assert any_folder.store.read(key) == written
    delete_superseded(RunWriter(any_folder, 1), STRICT)
    assert kept(any_folder) == [1, 3]
    any_folder.store.delete(key)
    delete_superseded(RunWriter(any_folder, 1), STRICT)
    assert kept(any_folder) == [3]


def test_a_checkpoint_that_is_not_there_cannot_be_pinned(folder: RunFolder) -> None:
    uncommitted = save(folder, step=9, attempt=1)
    for name in (uncommitted, CheckpointName(10, 1)):
        with pytest.raises(FileNotFoundError, match=f"{name} does not exist"):
            pins.pin(folder.store, name, "me", "why")
        assert folder.store.names(f"{PINS}/{name}") == []


class Interrupted(Store):
    """A store whose caller is held up once, just before or after it writes a pin."""

    is_before = True
    meanwhile: Callable[[], None] | None = None

    def write(self, key: str, data: bytes, *, durable: bool = False) -> None:
        meanwhile = self.meanwhile if key.startswith(PINS) else None
        if meanwhile:
            self.meanwhile = None
            if self.is_before:
                meanwhile()
        super().write(key, data, durable=durable)
        if meanwhile and not self.is_before:
            meanwhile()


def held_up(folder: RunFolder, meanwhile: Callable[[], None], *, is_before: bool) -> RunFolder:
    slow = RunFolder(folder.storage, folder.name)
    store = Interrupted(folder.url)
    store.meanwhile, store.is_before = meanwhile, is_before
    slow.store = store
    return slow


@pytest.mark.parametrize("is_before", [True, False])
def test_one_that_pins_while_a_checkpoint_is_being_deleted_steps_back_or_keeps_it(
    folder: RunFolder, *, is_before: bool
) -> None:
    first, _, _ = three(folder)
    outcomes: list[bool] = []

    def delete() -> None:
        outcomes.append(delete_unless_pinned(RunWriter(folder, 1), str(first)))

    slow = held_up(folder, delete, is_before=is_before)
    if is_before:
        with pytest.raises(FileNotFoundError, match="does not exist"):
            pins.pin(slow.store, first, "infer-1", "infer")
        assert outcomes == [True]
        assert kept(folder) == [2, 3]
    else:
        pins.pin(slow.store, first, "infer-1", "infer")
        assert outcomes == [False]
        assert kept(folder) == [1, 2, 3]


@pytest.mark.parametrize("is_before", [True, False])
def test_one_that_deletes_while_somebody_pins_steps_back(
    any_folder: RunFolder, *, is_before: bool
) -> None:
    first, _, _ = three(any_folder)
    refused: list[str] = []

    def pin() -> None:
        try:
            pins.pin(any_folder.store, first, "infer-1", "infer")
        except FileNotFoundError as error:
            refused.append(str(error))

    slow = held_up(any_folder, pin, is_before=is_before)
    deleted = delete_unless_pinned(RunWriter(slow, 1), str(first))
    # The reader that came after the announcement was told so; the other one's pin is respected.
    assert deleted == (not is_before)
    assert [line.rpartition(" is ")[2] for line in refused] == (
        [] if is_before else ["being deleted"]
    )
    assert kept(any_folder) == ([1, 2, 3] if is_before else [2, 3])


def test_a_deletion_that_died_keeps_nobody_from_pinning(folder: RunFolder) -> None:
    first, _, _ = three(folder)
    gone = Holder.here().model_copy(update={"process_started": 1.0, "process_start": ""})
    announced = pins.Pin(why="deletion", created_at="2026-01-01", holder=gone, attempt=1)
    key = f"{PINS}/{first}/deletion-a0001.json"
    folder.store.write(key, announced.model_dump_json().encode())
    with pins.pinned(folder.store, [first], "infer"):
        assert not delete_unless_pinned(RunWriter(folder, 1), str(first))
    pins.sweep(folder.store)
    assert not folder.store.exists(key)


JOB = "run-score-abcdefgh"


def scoring_elsewhere(folder: RunFolder) -> tuple[Mailbox, Mailbox, str]:
    """A job that scores on another machine: its caller, itself, and its pin."""
    first, _, _ = three(folder)
    asking = Mailbox(folder.store, JOB)
    asking.send_heartbeat()
    asking.ask("infer", {})
    job = Mailbox(folder.store, JOB, THE_JOB)
    job.send_heartbeat()
    key = pins.pin(folder.store, first, "infer-1", "infer", job=JOB)
    there = Holder.here().model_copy(update={"machine": "another"})
    pin = pins.Pin(why="infer", created_at="2026-01-01", holder=there, job=JOB)
    folder.store.write(key, pin.model_dump_json().encode())
    return asking, job, key


def test_a_pin_of_a_job_elsewhere_ends_with_what_was_asked_of_the_job(folder: RunFolder) -> None:
    asking, _, key = scoring_elsewhere(folder)
    assert [found.key for found in pins.valid_pins(folder.store)] == [key]
    asking.clear()
    assert pins.valid_pins(folder.store) == []
    pins.sweep_ended(folder.store)
    assert not folder.store.exists(key)


@pytest.mark.parametrize("half", ["", "{"])
def test_what_a_job_left_that_died_with_its_caller_is_cleared_away(
    folder: RunFolder, half: str
) -> None:
    _, _, key = scoring_elsewhere(folder)
    predictions = f"{PREDICTIONS}/{key.split('/')[1]}-0a1b2c3d"
    folder.store.write(f"{predictions}/part-00000.parquet", b"half of it")
    # What lies there if the machine lost its power.
    folder.store.write(f"{CALLS}/{JOB}/{THE_JOB}-beat.json", half.encode())
    with clearing_dead_scorers(folder, timing=AT_ONCE):
        assert folder.store.exists(key)
    assert job_mailbox.jobs_with_calls(folder.store) == []
    assert find_orphans(folder, 99) == []
    assert folder.store.names(PREDICTIONS) == []
    assert not folder.store.exists(key)


@pytest.mark.parametrize("who", [THE_JOB, "the caller", "another caller", "it looks itself"])
def test_what_a_job_has_that_lives_is_left(folder: RunFolder, who: str) -> None:
    asking, job, key = scoring_elsewhere(folder)
    before = folder.store.names(f"{CALLS}/{JOB}")
    own = JOB if who == "it looks itself" else ""
    with clearing_dead_scorers(folder, own, timing=AT_ONCE):
        if who == THE_JOB:
            job.send_heartbeat()
        elif who == "the caller":
            asking.send_heartbeat()
        elif who == "another caller":
            Mailbox(folder.store, JOB).send_heartbeat()
    assert set(folder.store.names(f"{CALLS}/{JOB}")) >= set(before)
    assert folder.store.exists(key)


def test_what_was_asked_of_a_job_that_drives_the_run_goes_with_its_lease(folder: RunFolder) -> None:
    three(folder)
    driving = str(JobName("run", 1, "0a1b2c3d"))
    Mailbox(folder.store, driving).send_heartbeat()
    with clearing_dead_scorers(folder, timing=AT_ONCE):
        pass
    assert job_mailbox.jobs_with_calls(folder.store) == [driving]


class MovesAtLast(Store):
    """A store in which the job's heartbeat moves just before it is read a third time."""

    job: Mailbox
    reads = 0

    def names(self, key: str = "") -> list[str]:
        if key == f"{CALLS}/{JOB}":
            MovesAtLast.reads += 1
            if MovesAtLast.reads == 3:
                MovesAtLast.job.send_heartbeat()
        return super().names(key)


def test_a_heartbeat_that_moves_again_after_an_outage_is_that_of_no_dead_job(
    folder: RunFolder,
) -> None:
    _, MovesAtLast.job, key = scoring_elsewhere(folder)
    folder.store, MovesAtLast.reads = MovesAtLast(folder.url), 0
    # Once as it begins, and twice as it ends.
    with clearing_dead_scorers(folder, timing=AT_ONCE):
        pass
    assert MovesAtLast.reads >= 3
    assert job_mailbox.jobs_with_calls(folder.store) == [JOB]
    assert folder.store.exists(key)


class NotesPolicies(Store):
    """A store that records the retry policy of each deletion."""

    noted: ClassVar[list[RetryPolicy]] = []

    def delete(self, key: str) -> None:
        NotesPolicies.noted.append(self.retry_policy)
        super().delete(key)


def test_what_dead_jobs_left_is_cleared_without_waiting_long_for_the_storage(
    folder: RunFolder,
) -> None:
    _, _, key = scoring_elsewhere(folder)
    predictions = f"{PREDICTIONS}/{key.split('/')[1]}-0a1b2c3d"
    folder.store.write(f"{predictions}/part-00000.parquet", b"half of it")
    NotesPolicies.noted = []
    folder.store = NotesPolicies(folder.url)
    with clearing_dead_scorers(folder, timing=AT_ONCE):
        pass
    assert folder.store.names(PREDICTIONS) == []
    assert set(NotesPolicies.noted) == {SHORT}


def test_where_calls_cannot_be_listed_the_dead_are_left_to_the_next(
    folder: RunFolder, caplog: pytest.LogCaptureFixture
) -> None:
    _, _, key = scoring_elsewhere(folder)
    folder.store = ForgetsCalls(folder.url)
    with clearing_dead_scorers(folder, timing=AT_ONCE):
        pass
    assert folder.store.exists(key)
    assert "what a dead job left could not be deleted" in caplog.text


class ForgetsCalls(Store):
    """A store that fails to list mailbox."""

    def names(self, key: str = "") -> list[str]:
        if key.startswith(CALLS):
            raise StorageError(f"cannot list {self.uri(key)}: 503")
        return super().names(key)


class ForgetsPins(Store):
    """A store that fails to list pins."""

    def names(self, key: str = "") -> list[str]:
        if key.startswith(PINS):
            raise StorageError(f"cannot list {self.uri(key)}: 503")
        return super().names(key)


@pytest.mark.promise("pinned-is-kept")
def test_where_pins_cannot_be_listed_nothing_is_deleted(
    folder: RunFolder, caplog: pytest.LogCaptureFixture
) -> None:
    three(folder)
    folder.store = ForgetsPins(folder.url)
    delete_superseded(RunWriter(folder, 1), STRICT)
    assert kept(folder) == [1, 2, 3]
    assert "503" in caplog.text
    with pytest.raises(StorageError):
        delete_unless_pinned(RunWriter(folder, 1), str(CheckpointName(1, 1)))
    assert kept(folder) == [1, 2, 3]


@pytest.mark.parametrize("report", [b"[]", b"{}", b'{"best": null}', b"{"])
def test_where_the_report_does_not_name_the_best_nothing_is_deleted(
    folder: RunFolder, report: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    three(folder)
    folder.store.write("report.json", report)
    delete_superseded(RunWriter(folder, 1), STRICT)
    assert kept(folder) == [1, 2, 3]
    assert "report.json" in caplog.text


def test_metrics_of_another_step_rank_nothing(folder: RunFolder) -> None:
    begin_attempt(folder)
    for step, accuracy, validated in ((1, 0.9, False), (2, 0.5, True), (3, 0.1, True)):
        save(folder, step, 1)
        changed = {"metrics": {"validation/accuracy": accuracy}, "validated": validated}
        RunWriter(folder, 1).commit(manifest(step, 1).model_copy(update=changed))
    delete_superseded(RunWriter(folder, 1), STRICT)
    assert kept(folder) == [2, 3]
