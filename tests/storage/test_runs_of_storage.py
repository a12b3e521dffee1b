from __future__ import annotations

import pytest

from tests.storage.samples import record
from train_core.errors import ConfigError
from train_core.storage.objects.store import Store
from train_core.storage.records.names import REPORT_JSON, RUN_JSON
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import create_run
from train_core.storage.runs_of_storage import finished_runs, newest_finished

OURS = "clinic:Clinic"


def run(
    storage: str,
    name: str,
    hour: int,
    *,
    workload: str = OURS,
    done: bool = True,
    dry: bool = False,
) -> RunFolder:
    folder = RunFolder(storage, name)
    made = record(name, workload=workload)
    facts = {"created_at": f"2026-11-23T{hour:02}:00:00+00:00", "pipeline": {"dry_run": dry}}
    create_run(folder, made.model_copy(update=facts))
    if done:
        folder.store.write(REPORT_JSON, b'{"run": "%s"}' % name.encode())
    return folder


def listed(storage: str, **asked: str) -> list[str]:
    return [found.name for found in finished_runs(storage, OURS, **asked)]


@pytest.mark.promise("batch-latest")
def test_the_newest_created_comes_first_and_what_is_no_finished_run_is_left_out(
    storage_url: str,
) -> None:
    run(storage_url, "zero", 1)
    run(storage_url, "another", 3)
    run(storage_url, "middle", 2)
    run(storage_url, "other", 4, workload="digits:Digits")
    run(storage_url, "unfinished", 5, done=False)
    run(storage_url, "dry", 6, dry=True)
    Store(storage_url).write("notes.txt", b"not a run")
    Store(storage_url).write("no run/notes.txt", b"not a run")
    assert listed(storage_url) == ["another", "middle", "zero"]
    assert listed(storage_url, before="2026-11-23T03:00:00+00:00") == ["middle", "zero"]
    assert newest_finished(storage_url, OURS).name == "another"
    assert newest_finished(storage_url).name == "other"


def test_an_empty_storage_has_none(storage_url: str) -> None:
    assert listed(storage_url) == []


def test_a_run_that_cannot_be_read_is_logged_and_hides_no_other(
    storage_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    run(storage_url, "good", 1)
    torn, damaged = run(storage_url, "torn", 2), run(storage_url, "damaged", 3)
    torn.store.write(RUN_JSON, b'{"format": 1')
    damaged.store.write(REPORT_JSON, b"[")
    run(storage_url, "newer", 4).store.write(RUN_JSON, b'{"format": 9}')
    assert newest_finished(storage_url, OURS).name == "good"
    for name in ("torn", "damaged", "newer"):
        assert f"run '{name}' cannot be read" in caplog.text


@pytest.mark.promise("batch-latest")
def test_where_there_is_none_the_error_says_what_there_is(storage_url: str) -> None:
    with pytest.raises(ConfigError, match=r"no finished run in .*Of runs .* there are none$") as no:
        newest_finished(storage_url)
    assert storage_url in str(no.value)
    run(storage_url, "other", 1, workload="digits:Digits")
    run(storage_url, "begun", 2, done=False)
    told = r"no finished run of clinic:Clinic in .*there are begun \(of clinic:Clinic\), other \("
    with pytest.raises(ConfigError, match=told):
        newest_finished(storage_url, OURS)
