"""Checkpoints of strategy `fsdp`: each rank stores its rows, and any number of ranks reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.rank.test_exact import CONFIG
from tests.ranks.processes import train
from tests.storage.samples import record
from train_core.client.checkpoints import export_weights
from train_core.driver.preparing.init_source import find_origin
from train_core.policy.checkpoints.layout import part_of
from train_core.rank.checkpoint.packing import pack
from train_core.rank.checkpoint.reader import load_state, read_model
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import create_run

CONFIG = CONFIG | {
    "workload": "tests.ranks.fsdp_rank:Averaging",
    "strategy": "fsdp",
}


def tensors(folder: RunFolder) -> dict[str, torch.Tensor]:
    newest = max(folder.checkpoints(), key=lambda c: c.name)
    return pack(load_state(folder.store, newest))[1]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, Any]:
    """The run on three workers that nobody touched, and its digest."""
    storage = str(tmp_path_factory.mktemp("undisturbed"))
    return RunFolder(storage, "run"), train(storage, "run", attempt=1, workers=3, config=CONFIG)


@pytest.mark.slow
@pytest.mark.promise("fsdp")
def test_resumed_on_as_many_workers_it_ends_with_the_same_bits(
    undisturbed: tuple[RunFolder, Any], storage_url: str, tmp_path: Path
) -> None:
    at: dict[str, Any] = {"workers": 3, "config": CONFIG, "home": str(tmp_path)}
    killed = {"point": "in_step", "step": 4, "rank": 1, "after": 4}
    train(storage_url, "run", attempt=1, **at, **killed)
    found = train(storage_url, "run", attempt=2, **at)
    assert found == undisturbed[1] | {"resumed_from": 4}


@pytest.mark.slow
def test_resumed_on_other_numbers_of_workers_it_ends_the_same_to_rounding(
    undisturbed: tuple[RunFolder, Any], tmp_path: Path
) -> None:
    storage = str(tmp_path)
    train(storage, "run", attempt=1, workers=2, config=CONFIG, point="in_step", step=3, after=2)
    train(storage, "run", attempt=2, workers=1, config=CONFIG, point="in_step", step=5, after=5)
    train(storage, "run", attempt=3, workers=4, config=CONFIG)
    found, expected = tensors(RunFolder(storage, "run")), tensors(undisturbed[0])
    assert found.keys() == expected.keys()
    for path, tensor in expected.items():
        torch.testing.assert_close(
            found[path], tensor, msg=lambda text, path=path: f"{path}: {text}"
        )


@pytest.mark.slow
def test_training_goes_on_after_validations_of_different_lengths(tmp_path: Path) -> None:
    # Rank 0 validates two batches and rank 1 one; three blocks, whose weights FSDP fetches ahead.
    config = {
        "workload": "train_core.workloads.digits:Digits",
        "strategy": "fsdp",
        "epochs": 2,
        "num_shards": 3,
        "eval_batch_size": 60,
    }
    assert train(str(tmp_path), "run", attempt=1, workers=2, config=config, timeout_s=60)


@pytest.mark.slow
def test_a_new_run_begins_with_anothers_weights_and_optimizer(
    undisturbed: tuple[RunFolder, Any], tmp_path: Path
) -> None:
    newest = max(undisturbed[0].checkpoints(), key=lambda c: c.name)
    source = undisturbed[0].store.uri(newest.key)
    config = CONFIG | {"epochs": 1, "init_from": source, "init_from_optimizer": True}
    found = {}
    for workers in (1, 2):
        folder = RunFolder(str(tmp_path), f"on-{workers}")
        begun = record(folder.name, **config)
        origin = find_origin(source, "", "")
        create_run(folder, begun.model_copy(update={"origin": origin, "datasets": {}}))
        train(folder.storage, folder.name, attempt=1, workers=workers, config=config)
        found[workers] = tensors(folder)
    # AdamW has counted the steps of both runs.
    steps = {path: t for path, t in found[2].items() if path.endswith("/step")}
    assert {int(step) for step in steps.values()} == {15}
    for path, tensor in found[1].items():
        torch.testing.assert_close(found[2][path], tensor)


@pytest.mark.promise("export")
def test_each_rank_writes_its_rows_and_they_make_whole_tensors(
    undisturbed: tuple[RunFolder, Any],
) -> None:
    folder, _ = undisturbed
    newest = max(folder.checkpoints(), key=lambda c: c.name)
    sizes = {file.name: file.size_bytes for file in newest.manifest.files}
    # The average is frozen, and so in files of its own.
    assert [name for name in sorted(sizes) if part_of(name) == "model"] == [
        f"model-0000{number}-of-00006.safetensors" for number in range(1, 7)
    ]
    weights = read_model(folder.store, newest).weights
    export_weights(folder, newest, f"{folder.storage}/exported")
    exported = load_file(f"{folder.storage}/exported/model.safetensors")
    assert exported.keys() == weights.keys()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in exported.items())
    assert weights["live.0.weight"].shape == (16, 8)
    assert weights["live.4.weight"].shape == (3, 16)
    assert weights["average.1.num_batches_tracked"].shape == ()
