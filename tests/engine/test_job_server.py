"""What the driver in a cluster makes of calls that are none, of a wrong place, and of silence."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from train_core.engine import job_process
from train_core.engine.job_process import JobServer
from train_core.errors import ConfigError
from train_core.storage.calls import Answer, Calls
from train_core.storage.run_folder import RunFolder

JOB = "run-a0001-0a1b2c3d"
JUNK = f"{'0' * 32}-0001"

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def folder(storage_url: str) -> RunFolder:
    return RunFolder(storage_url, "run")


def serving(folder: RunFolder, first: str, pool: ThreadPoolExecutor) -> Future[bool]:
    return pool.submit(JobServer(Calls(folder.store, JOB), folder).serve, first)


def test_what_is_no_call_is_answered_with_its_fault_and_the_next_one_is_heard(
    folder: RunFolder,
) -> None:
    caller = Calls(folder.store, JOB)
    folder.store.write(f"calls/{JOB}/{JUNK}.json", b"\x80\x04junk")
    folder.store.write(f"calls/{JOB}/notes.txt", b"nothing of ours")
    no_stage = caller.ask("explode", {})
    no_request = caller.ask("prepare", {"request": {"run": "run"}})
    with ThreadPoolExecutor(1) as pool:
        # Only what was prepared can go on.
        assert serving(folder, JUNK, pool).result() is False
    assert "not a call" in told(caller.answer_to(JUNK))
    assert "there is no stage 'explode'" in told(caller.answer_to(no_stage))
    assert "storage" in told(caller.answer_to(no_request))


def told(answer: Answer | None) -> str:
    assert answer
    assert answer.error
    return str(answer.error)


def test_a_job_that_sees_another_place_than_its_caller_says_so(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_process, "_FIRST_CALL_WITHIN_S", 0.5)
    with (
        ThreadPoolExecutor(1) as pool,
        pytest.raises(ConfigError, match=r"another place on the cluster .* such as s3://"),
    ):
        serving(folder, JUNK, pool).result()


def test_a_job_that_nobody_calls_any_more_ends(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_process, "LINGER_S", 1)
    monkeypatch.setattr(job_process, "STANDSTILL_S", 1)
    name = Calls(folder.store, JOB).ask("explode", {})
    with ThreadPoolExecutor(1) as pool:
        assert serving(folder, name, pool).result() is False
