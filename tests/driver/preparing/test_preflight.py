"""What is checked before any compute: a run that is continued elsewhere, or on other data."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch

from tests.ranks.without_ray import stages_without_ray
from tests.storage.samples import record
from train_core.config import TrainConfig
from train_core.driver.preparing.preflight import check, new_record
from train_core.errors import ConfigError, DataError, RunConflictError, WorkloadError
from train_core.loading import load_workload
from train_core.rank.data.inputs import open_input
from train_core.rank.data.recorded_workload import check_continuation, with_monitor
from train_core.rank.distributed.group import Group
from train_core.rank.loop import Trainer
from train_core.requests import DriverRequest, PipelineRequest
from train_core.storage.objects.store import Store
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import create_run

TINY = {"workload": "tests.rank.tiny:Tiny", "batch_size": 32, "gpus_per_worker": 0}


def begin(
    tmp_path: Path, config: Mapping[str, Any] | None = None, **changes: dict[str, Any]
) -> None:
    """Create a run whose record says `changes` instead of what is true here."""
    request = asked(tmp_path, **config or {})
    checked = check(RunFolder(str(tmp_path), "run"), request)
    true = new_record(request, request.config, checked.datasets)
    changed = {name: getattr(true, name) | change for name, change in changes.items()}
    create_run(RunFolder(str(tmp_path), "run"), true.model_copy(update=changed))


def asked(tmp_path: Path, **config: Any) -> DriverRequest:
    return DriverRequest(
        storage=str(tmp_path), run="run", config=with_monitor(TrainConfig(**TINY | config))
    )


def continued(tmp_path: Path, **config: Any) -> None:
    checked = check(RunFolder(str(tmp_path), "run"), asked(tmp_path, **config))
    assert checked.prepared.resumed


def test_no_new_run_is_called_what_means_the_newest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="run name 'latest' is not usable"):
        check(RunFolder(str(tmp_path), "latest"), asked(tmp_path))


def test_an_unchanged_run_is_continued_in_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begin(tmp_path)
    continued(tmp_path, strict=True)
    assert caplog.messages == []


@pytest.mark.promise("surroundings")
def test_other_surroundings_are_warned_about_or_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begin(tmp_path, fingerprint={"torch": "1.0"})
    with caplog.at_level(logging.WARNING):
        continued(tmp_path)
    changed = f"torch was 1.0, is {torch.__version__}"
    assert f"results: {changed}" in caplog.text
    with pytest.raises(ConfigError, match=re.escape(f"({changed}) and strict is set")):
        continued(tmp_path, strict=True)


@pytest.mark.promise("fsdp-limits")
def test_fsdp_on_another_number_of_workers_is_warned_about_or_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sharded = {"strategy": "fsdp", "num_shards": 2, "cpus_per_worker": 0.5}
    begin(tmp_path, sharded | {"num_workers": 2})
    continued(tmp_path, **sharded, num_workers=2, strict=True)
    assert caplog.messages == []
    with caplog.at_level(logging.WARNING):
        continued(tmp_path, **sharded)
    assert "num_workers was 2, is 1" in caplog.text
    with pytest.raises(ConfigError, match="num_workers was 2, is 1"):
        continued(tmp_path, **sharded, strict=True)


def test_fsdp_on_a_stream_that_workers_cannot_share_evenly_is_refused(tmp_path: Path) -> None:
    stream = {"workload": "tests.rank.tiny:StreamingTiny", "num_shards": 3, "num_workers": 2}
    request = asked(tmp_path, **stream, strategy="fsdp", cpus_per_worker=0.5)
    with pytest.raises(ConfigError, match="2 workers would not compute equally many"):
        check(RunFolder(str(tmp_path), "run"), request)


def test_another_number_of_samples_is_refused(tmp_path: Path) -> None:
    begin(tmp_path, datasets={"train": {"samples": 149, "digest": None}})
    said = "train split is not what run 'run' was begun with: samples was 149, is 150"
    with pytest.raises(DataError, match=said):
        continued(tmp_path)


@pytest.mark.promise("changed-data")
def test_other_data_is_refused(tmp_path: Path) -> None:
    """The record would be false: what is asked for makes no difference."""
    begin(tmp_path, datasets={"test": {"samples": 40, "digest": "0" * 64}})
    with pytest.raises(DataError, match=r"the test split is not what .*: digest was 000"):
        continued(tmp_path)


@pytest.mark.promise("record")
def test_settings_are_recorded_with_their_defaults(tmp_path: Path) -> None:
    begin(tmp_path, {"settings": {"dropout": 0.1}})
    recorded = RunFolder(str(tmp_path), "run").record().config.settings
    assert recorded["dropout"] == 0.1
    assert recorded["learning_rate"] == 0.01
    assert recorded["momentum"] is None


def test_a_run_whose_record_lacks_the_defaults_is_continued(tmp_path: Path) -> None:
    begin(tmp_path, {"settings": {"dropout": 0.1}})
    folder = RunFolder(str(tmp_path), "run")
    new = folder.record()
    old = new.config.model_copy(update={"settings": {"dropout": 0.1}})
    folder.store.delete("run.json")
    create_run(folder, new.model_copy(update={"config": old}))
    continued(tmp_path, settings={"dropout": 0.1})
    continued(tmp_path, settings={"dropout": 0.1, "learning_rate": 0.01})
    with pytest.raises(
        RunConflictError, match=r"settings\.learning_rate: was 0\.01, asked for 0\.5"
    ):
        continued(tmp_path, settings={"dropout": 0.1, "learning_rate": 0.5})


def test_settings_that_the_code_no_longer_has_are_told_as_a_difference(tmp_path: Path) -> None:
    begin(tmp_path)
    folder = RunFolder(str(tmp_path), "run")
    new = folder.record()
    old = new.config.model_copy(update={"settings": new.config.settings | {"dropped": 7}})
    folder.store.delete("run.json")
    create_run(folder, new.model_copy(update={"config": old}))
    with pytest.raises(RunConflictError, match=r"settings\.dropped: was 7"):
        continued(tmp_path)


def test_logins_in_urls_are_neither_recorded_nor_a_difference(tmp_path: Path) -> None:
    secret = {"settings": {"scratch": "ftp://me:s3cret@host/x"}}
    begin(tmp_path, secret)
    folder = RunFolder(str(tmp_path), "run")
    assert folder.record().config.settings["scratch"] == "ftp://***@host/x"
    assert b"s3cret" not in folder.store.read("run.json")
    continued(tmp_path, **secret)
    with pytest.raises(RunConflictError) as raised:
        continued(tmp_path, settings={"scratch": "ftp://me:s3cret@other/x"})
    assert "s3cret" not in str(raised.value)


def test_settings_without_their_logins_are_not_given_to_the_workload(tmp_path: Path) -> None:
    """Who resumes a run asks for what is recorded."""
    begin(tmp_path, {"settings": {"scratch": "ftp://me:s3cret@host/x"}})
    recorded = RunFolder(str(tmp_path), "run").newest_request().config.settings
    with pytest.raises(
        ConfigError, match=r"the login in settings\.scratch \(ftp://\*\*\*@host/x\)"
    ):
        continued(tmp_path, settings=recorded)


@pytest.mark.promise("secrets")
def test_no_login_of_what_is_scored_or_begun_with_is_recorded(tmp_path: Path) -> None:
    place = "memory://me:s3cret@host"
    rows = io.BytesIO()
    pq.write_table(pa.table({"x": [[0.0] * 8]}), rows)
    Store(place).write("new.parquet", rows.getvalue())
    weights = load_workload(TINY["workload"], {}).model().state_dict()
    Store(place).write("first.safetensors", safetensors.torch.save(weights))
    scored = f"{place}/new.parquet"
    request = asked(tmp_path, init_from=f"{place}/first.safetensors").model_copy(
        update={"pipeline": PipelineRequest(infer_input=scored)}
    )
    driver = stages_without_ray(request)
    driver.prepare()
    driver.close("KILLED")
    found = Store(str(tmp_path)).tree("")
    assert found
    assert [name for name in found if b"s3cret" in Store(str(tmp_path)).read(name)] == []
    folder = RunFolder(str(tmp_path), "run")
    origin = folder.record().origin
    assert origin is not None
    assert origin.uri == "memory://***@host/first.safetensors"
    assert folder.newest_request().pipeline["infer_input"] == "memory://***@host/new.parquet"
    described = open_input(scored, load_workload(TINY["workload"], {})).describe()
    assert described["source"] == "memory://***@host"

    # The run has no checkpoint yet, so it begins with those weights again.
    assert check(folder, request).prepared.resumed
    recorded = folder.newest_request()
    for part in (
        {"config": recorded.config},
        {"pipeline": recorded.requested},
    ):
        hidden = request.model_copy(update=part)
        with pytest.raises(ConfigError, match=r"the login in the URL of the .* is not recorded"):
            check(folder, hidden)
    config = request.config.model_copy(update={"epochs": 1})
    Trainer(folder, with_monitor(config), 1, Group.current()).run()
    assert folder.checkpoints()


def test_what_may_not_change_is_refused(tmp_path: Path) -> None:
    begin(tmp_path)
    continued(tmp_path, epochs=7, checkpoint_every_steps=3)
    with pytest.raises(RunConflictError, match="seed"):
        continued(tmp_path, seed=1)


def test_a_run_of_another_flow_run_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    begin(tmp_path)
    another = asked(tmp_path).model_copy(update={"flow_run": "another"})
    with pytest.raises(ConfigError, match="another would be named the same"):
        check(RunFolder(str(tmp_path), "run"), another)


def test_all_that_may_change_may_change_at_once(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path), "run")
    create_run(folder, record(num_shards=4, epochs=1))
    changed = TrainConfig(num_shards=4, epochs=5, num_workers=2, keep_last=9)
    check_continuation(folder, changed)


@pytest.mark.promise("no-silent-change")
def test_what_may_not_change_is_refused_with_the_difference(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path), "run")
    create_run(folder, record(seed=1, batch_size=64))
    with pytest.raises(RunConflictError) as caught:
        check_continuation(folder, TrainConfig(seed=2, batch_size=32, epochs=7))
    assert caught.value.differences == {"seed": (1, 2), "batch_size": (64, 32)}
    assert "seed: was 1, asked for 2" in str(caught.value)
    assert "batch_size: was 64, asked for 32" in str(caught.value)


def test_another_workload_is_refused_whatever_its_settings_are(tmp_path: Path) -> None:
    begin(tmp_path)
    with pytest.raises(RunConflictError, match="workload: was 'tests"):
        continued(tmp_path, workload="tests.rank.tiny:Linear")


def test_a_dry_run_is_no_part_of_a_real_one(tmp_path: Path) -> None:
    begin(tmp_path)
    dry = asked(tmp_path).model_copy(update={"dry_run": True})
    with pytest.raises(RunConflictError, match="dry_run: was False, asked for True"):
        check(RunFolder(str(tmp_path), "run"), dry)


def test_a_model_that_no_shards_can_share_is_refused_before_there_is_a_run(tmp_path: Path) -> None:
    sparse = {
        "workload": "tests.pytorch.case:CaseWorkload",
        "settings": {"name": "Situations: a sparse embedding"},
        "monitor": "validation/loss",
    }
    with pytest.raises(WorkloadError, match=r"'embedding.weight' is sparse.*num_shards 1"):
        check(RunFolder(str(tmp_path), "run"), asked(tmp_path, **sparse, num_shards=2))
    assert not any(tmp_path.iterdir())
    check(RunFolder(str(tmp_path), "run"), asked(tmp_path, **sparse, num_shards=1))
