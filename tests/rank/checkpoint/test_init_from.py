"""A run that begins from other weights: which they are, what is refused, and that it is exact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.rank.alone import run
from tests.rank.digests import digest_of_training, journal_of
from tests.rank.tiny import Tiny, TinySettings
from tests.ranks.processes import train
from train_core.client.checkpoints import export_weights
from train_core.config import TrainConfig
from train_core.driver.preparing.init_source import find_origin
from train_core.driver.preparing.preflight import check, new_record
from train_core.errors import CheckpointError, ConfigError
from train_core.rank.checkpoint.init_from import InitialState
from train_core.rank.checkpoint.reader import load_state, read_model
from train_core.rank.data.recorded_workload import with_monitor
from train_core.requests import DriverRequest
from train_core.storage.records.names import MODEL_FILE, REPORT_JSON
from train_core.storage.records.run_record import Origin
from train_core.storage.run_folder import Commit, RunFolder
from train_core.storage.run_writer import create_run
from train_core.tools.compare import compare_checkpoints

ASKED: dict[str, Any] = {
    "workload": "tests.rank.tiny:Tiny",
    "batch_size": 32,
    "num_shards": 2,
    "epochs": 1,
    "gpus_per_worker": 0,
}


@pytest.fixture
def source(tmp_path: Path) -> RunFolder:
    """A run with checkpoints of steps 3, 5, 6, 9 and 10."""
    folder = RunFolder(str(tmp_path), "source")
    run(folder, epochs=2, checkpoint_every_steps=3, keep_last=9)
    return folder


def newest(folder: RunFolder) -> Commit:
    return folder.checkpoints()[-1]


def request(storage: Path, name: str, **config: Any) -> DriverRequest:
    return DriverRequest(
        storage=str(storage), run=name, config=with_monitor(TrainConfig(**ASKED | config))
    )


def begin(storage: Path, name: str, **config: Any) -> Origin:
    """What the driver does before the training."""
    asked = request(storage, name, **config)
    folder = RunFolder(str(storage), name)
    checked = check(folder, asked)
    if not checked.prepared.resumed:
        create_run(folder, new_record(asked, asked.config, checked.datasets, checked.origin))
    assert checked.origin is not None
    return checked.origin


def first_state(origin: Origin, **config: Any) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A new model and its optimizer, begun from `origin`."""
    workload = Tiny(TinySettings())
    model = workload.model()
    optimizer = workload.optimizer(model)
    first = InitialState.read(origin, TrainConfig(**ASKED | {"init_from": "source"} | config))
    first.give_weights(model)
    first.give_optimizer(model, optimizer)
    return model, optimizer


@pytest.mark.promise("init-from")
def test_every_way_to_name_the_weights(source: RunFolder, tmp_path: Path) -> None:
    storage = str(tmp_path)
    last, first = newest(source), source.checkpoints()[0]
    for what, meant in {
        "source": last,
        source.url: last,
        f"source/{first.name}": first,
        source.store.uri(first.key): first,
        f"file://{source.store.uri(first.key)}": first,
    }.items():
        origin = find_origin(what, storage, "")
        assert (Path(origin.uri).name, origin.digest) == (str(meant.name), meant.digest)

    best = source.checkpoints()[1]
    source.store.write(REPORT_JSON, f'{{"best": {{"name": "{best.name}"}}}}'.encode())
    assert find_origin("source", storage, "").digest == best.digest


def test_a_checkpoint_folder_without_its_run_will_do(source: RunFolder, tmp_path: Path) -> None:
    moved = RunFolder(str(tmp_path / "elsewhere"), "moved")
    last = newest(source)
    for name in source.store.names(last.key):
        source.store.copy(f"{last.key}/{name}", moved.store, f"{last.key}/{name}")
    assert find_origin(moved.store.uri(last.key), str(tmp_path), "").digest == last.digest


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("nowhere", "there is no run 'nowhere'"),
        ("source/step-00000004-a0001", "has no checkpoint step-00000004-a0001"),
        ("/nowhere/weights.safetensors", "/nowhere/weights.safetensors does not exist"),
        ("models:/champion/1", "give a tracking_uri"),
    ],
)
def test_what_is_not_there_is_refused_before_the_run_exists(
    what: str, told: str, source: RunFolder, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=told):
        begin(tmp_path, "new", init_from=what)
    assert not RunFolder(str(tmp_path), "new").exists()


def test_the_model_gets_the_very_weights_and_the_optimizer_its_moments(
    source: RunFolder, tmp_path: Path
) -> None:
    origin = find_origin("source", str(tmp_path), "")
    state = load_state(source.store, newest(source))
    model, optimizer = first_state(origin)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, state["model"][name])
    assert not optimizer.state

    model, optimizer = first_state(origin, init_from_optimizer=True)
    rate = state["optimizer"]["param_groups"][0]["lr"]
    assert optimizer.param_groups[0]["lr"] == TinySettings().learning_rate != rate
    for name, parameter in model.named_parameters():
        moments = state["optimizer"]["state"][name]
        assert torch.equal(optimizer.state[parameter]["exp_avg"], moments["exp_avg"])
        assert int(optimizer.state[parameter]["step"]) == 10


def change(weights: dict[str, torch.Tensor]) -> None:
    """One tensor less, one more, one of another shape."""
    del weights["0.bias"]
    weights["head.weight"] = torch.zeros(2)
    weights["4.weight"] = torch.zeros(5, 16)


FAULTS = ["0.bias is missing", "4.weight is (5, 16), here (3, 16)", "head.weight is unexpected"]


@pytest.mark.promise("init-from")
@pytest.mark.parametrize(
    ("allowed", "listed"),
    [
        ([], FAULTS),
        (["0.bias"], FAULTS[1:]),
        (["head.*", "?.bias"], FAULTS[1:2]),
        (["head.*", "0.bias", "4.weight"], []),
    ],
    ids=str,
)
def test_what_does_not_fit_is_listed_unless_it_is_allowed(
    allowed: list[str], listed: list[str], source: RunFolder, tmp_path: Path
) -> None:
    weights = read_model(source.store, newest(source)).weights
    change(weights)
    file = tmp_path / "weights.safetensors"
    save_file(weights, file)
    asked = {"init_from": str(file), "init_from_allow": allowed}
    if listed:
        with pytest.raises(ConfigError) as raised:
            begin(tmp_path, "new", **asked)
        assert f"does not fit the model: {'; '.join(listed)}. Name" in str(raised.value)
        return
    model, _ = first_state(begin(tmp_path, "new", **asked), **asked)
    assert torch.equal(model.state_dict()["0.weight"], weights["0.weight"])
    assert not torch.equal(model.state_dict()["4.weight"], torch.zeros(3, 16))


def test_nothing_that_fits_is_refused_even_if_all_is_allowed(tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    save_file({"other": torch.zeros(1)}, file)
    with pytest.raises(ConfigError, match="has no tensor that fits the model"):
        begin(tmp_path, "new", init_from=str(file), init_from_allow=["*"])


def test_another_kind_of_optimizer_is_refused(source: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no SGD, it has no dampening, momentum, nesterov"):
        begin(
            tmp_path,
            "new",
            init_from="source",
            init_from_optimizer=True,
            settings={"momentum": 0.9},
        )


@pytest.mark.promise("init-from-exact")
@pytest.mark.parametrize("kill_at", [0, 3])
def test_a_run_that_is_killed_before_its_first_checkpoint_begins_with_the_same_weights(
    kill_at: int, source: RunFolder, tmp_path: Path
) -> None:
    asked = ASKED | {"init_from": "source", "init_from_optimizer": True}
    storage = str(tmp_path)
    begin(tmp_path, "undisturbed", **asked)
    undisturbed = train(storage, "undisturbed", attempt=1, workers=1, config=asked)

    origin = begin(tmp_path, "killed", **asked)
    train(storage, "killed", attempt=1, workers=1, config=asked, point="in_step", step=kill_at)
    assert not RunFolder(storage, "killed").checkpoints()
    # What the run's name means now is another checkpoint.
    run(source, attempt=2, epochs=3)
    assert find_origin("source", storage, "") != origin == begin(tmp_path, "killed", **asked)
    assert train(storage, "killed", attempt=2, workers=2, config=asked) == undisturbed

    from_nothing = train(storage, "fresh", attempt=1, workers=1, config=ASKED)
    assert from_nothing != undisturbed


def test_weights_of_a_file_and_of_its_checkpoint_begin_the_same_run(
    source: RunFolder, tmp_path: Path
) -> None:
    file = tmp_path / "weights.safetensors"
    save_file(read_model(source.store, newest(source)).weights, file)
    digests = []
    for name, what in (("from-file", str(file)), ("from-run", "source")):
        begin(tmp_path, name, init_from=what)
        folder = RunFolder(str(tmp_path), name)
        run(folder, **ASKED | {"init_from": what})
        digests.append(digest_of_training(folder))
    assert digests[0] == digests[1]
    fresh = RunFolder(str(tmp_path), "fresh")
    run(fresh, **ASKED)
    assert journal_of(fresh)[0] != journal_of(folder)[0]


@pytest.mark.promise("init-from-exact")
def test_weights_that_are_gone_or_changed_refuse_the_continuation(
    source: RunFolder, tmp_path: Path
) -> None:
    file = tmp_path / "weights.safetensors"
    weights = read_model(source.store, newest(source)).weights
    save_file(weights, file)
    asked = {"init_from": str(file)}
    begin(tmp_path, "new", **asked)
    folder = RunFolder(str(tmp_path), "new")

    weights["0.bias"][0] += 1
    save_file(weights, file)
    for continued in (begin, lambda *_, **asked: run(folder, **ASKED | asked)):
        with pytest.raises(CheckpointError, match="is not what the run was begun with"):
            continued(tmp_path, "new", **asked)

    file.unlink()
    for continued in (begin, lambda *_, **asked: run(folder, **ASKED | asked)):
        with pytest.raises(ConfigError, match="does not exist: the run begins with these weights"):
            continued(tmp_path, "new", **asked)


def test_a_run_with_a_checkpoint_of_its_own_needs_them_no_more(
    source: RunFolder, tmp_path: Path
) -> None:
    origin = begin(tmp_path, "new", init_from="source")
    folder = RunFolder(str(tmp_path), "new")
    run(folder, **ASKED | {"init_from": "source"})
    source.store.delete("")
    assert begin(tmp_path, "new", init_from="source") == origin
    assert run(folder, attempt=2, **ASKED | {"init_from": "source", "epochs": 2}).epoch == 2


def test_altered_weights_of_a_checkpoint_are_refused(source: RunFolder, tmp_path: Path) -> None:
    key = f"{newest(source).key}/{MODEL_FILE}"
    data = bytearray(source.store.read(key))
    data[-1] ^= 1
    source.store.write(key, bytes(data))
    with pytest.raises(CheckpointError, match="digest"):
        begin(tmp_path, "new", init_from="source")


@pytest.mark.slow
def test_runs_and_files_on_any_storage(storage_url: str) -> None:
    folder = RunFolder(storage_url, "source")
    run(folder, epochs=1)
    weights = read_model(folder.store, newest(folder)).weights
    exported = export_weights(folder, newest(folder), f"{storage_url}/exported")
    for what in ("source", folder.url, exported.uri):
        model, _ = first_state(find_origin(what, storage_url, ""))
        assert all(torch.equal(model.state_dict()[name], weights[name]) for name in weights)
    last = newest(folder)
    assert compare_checkpoints(folder, last, folder, last).is_same
    with pytest.raises(ConfigError, match="exists: name another file"):
        export_weights(folder, last, exported.uri)


def test_it_may_not_change_in_a_run(source: RunFolder, tmp_path: Path) -> None:
    begin(tmp_path, "new", init_from="source")
    with pytest.raises(ConfigError, match="init_from: was 'source', asked for ''"):
        check(RunFolder(str(tmp_path), "new"), request(tmp_path, "new"))


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"init_from_optimizer": True}, "need init_from"),
        ({"init_from_allow": ["x"]}, "need init_from"),
        ({"init_from": "x.safetensors", "init_from_optimizer": True}, "has no optimizer"),
    ],
)
def test_what_makes_no_sense_together(asked: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        TrainConfig(**asked)


@pytest.mark.promise("export")
@pytest.mark.slow
def test_the_exported_file_is_what_others_read(source: RunFolder, tmp_path: Path) -> None:
    """Of `evertrain export`: the same tensors, and the frame that some readers ask for."""
    target = str(tmp_path / "out")
    result = export_weights(source, newest(source), target)
    assert result.uri == f"{target}/{MODEL_FILE}"
    assert result.size_bytes == Path(result.uri).stat().st_size
    exported, committed = load_file(result.uri), read_model(source.store, newest(source)).weights
    assert exported.keys() == committed.keys()
    assert all(torch.equal(exported[name], committed[name]) for name in committed)
    with safe_open(result.uri, "pt") as opened:
        assert opened.metadata() == {"format": "pt"}
    assert find_origin(result.uri, "", "").digest == result.digest

    with pytest.raises(ConfigError, match="exists: name another file, or overwrite it"):
        export_weights(source, newest(source), target)
    assert export_weights(source, newest(source), target, overwrite=True) == result
