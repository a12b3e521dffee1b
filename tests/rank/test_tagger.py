"""Words, tuples, lengths, token means, balanced orders, two optimizers, a rate by validations."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.pytorch.engine import left_by
from tests.rank import alone
from tests.rank.tagger import PADDING, Sentences, Tagger, TaggerSettings
from tests.ranks.processes import train
from train_core import CombinedOptimizer
from train_core.config import TrainConfig
from train_core.datasets.protocols import CollatedDataset, fetch
from train_core.driver.preparing.preflight import effective
from train_core.errors import WorkloadError
from train_core.rank.data.batches import epoch_order
from train_core.rank.data.fitted import fit
from train_core.rank.data.recorded_workload import with_defaults, with_monitor
from train_core.rank.distributed.group import Group
from train_core.rank.loop import Trainer
from train_core.rank.metrics.evaluation_loop import measure_shard, merge, split_metrics
from train_core.rank.metrics.forward import nothing_of
from train_core.requests import DriverRequest
from train_core.storage.run_folder import RunFolder
from train_core.tools.plain_training import PlainTraining
from train_core.workload import load_split

CONFIG: dict[str, Any] = {
    "workload": "tests.rank.tagger:Tagger",
    "batch_size": 16,
    "eval_batch_size": 64,
    "epochs": 2,
    "num_shards": 2,
    "checkpoint_backpressure": "wait",
    "monitor": "validation/loss",
    "monitor_order": "min",
}


def trainer(folder: RunFolder, name: str = "Tagger", **asked: Any) -> Trainer:
    config = TrainConfig(**CONFIG | {"workload": f"tests.rank.tagger:{name}"} | asked)
    if not folder.exists():
        alone.create(folder, config)
    return Trainer(folder, with_monitor(config), 1, Group.current())


def folder_of(path: Path, name: str = "run") -> RunFolder:
    return RunFolder(str(path), name)


@pytest.mark.promise("several-optimizers")
@pytest.mark.parametrize(("shards", "accumulation"), [(1, 1), (2, 1), (3, 2)])
def test_a_training_is_that_of_plain_pytorch(
    shards: int, accumulation: int, tmp_path: Path
) -> None:
    asked = {"num_shards": shards, "accumulation_steps": accumulation}
    ours = trainer(folder_of(tmp_path), **asked)
    ours.run()
    workload = ours.loaded.workload
    plain = PlainTraining(workload, ours.config, load_split(workload, "train"))
    for step in range(plain.total_steps):
        plain.step(step)
        if (step + 1) % plain.steps_per_epoch == 0:
            plain.schedule.step(validation_loss(workload, plain.model))  # type: ignore[union-attr, arg-type]
    state = ours.learner
    found = left_by(state.model, state.optimizer, state.schedule)
    assert found == left_by(plain.model, plain.optimizer, plain.schedule)
    # It fell twice, in both optimizers.
    assert [group["lr"] for group in state.optimizer.param_groups] == [0.01 * 0.1, 0.1 * 0.1]


def test_a_rate_that_follows_validations_goes_by_the_monitored_metric(tmp_path: Path) -> None:
    asked = {"monitor": "validation/accuracy", "monitor_order": "max", "epochs": 1}
    ours = trainer(folder_of(tmp_path), "ByAccuracy", **asked)
    accuracy = ours.run().metrics["validation/accuracy"]
    assert ours.learner.schedule.best == accuracy != ours.progress.metrics["validation/loss"]


@torch.no_grad()
def validation_loss(workload: Tagger, model: nn.Module) -> float:
    dataset = load_split(workload, "validation")
    batch = workload.prepare(fetch(dataset, np.arange(len(dataset))), None)  # type: ignore[arg-type]
    return float(workload.loss(model(batch["inputs"]), batch).double())


@pytest.mark.promise("weighed")
@pytest.mark.parametrize(("shards", "accumulation"), [(1, 1), (1, 4), (3, 1), (4, 2)])
def test_a_step_is_divided_by_the_tokens_of_all_its_batches(
    shards: int, accumulation: int, tmp_path: Path
) -> None:
    """The reference is one backward pass over the whole step, in double precision."""
    settings = {"is_plain": True, "balances": False, "num_empty": 5}
    asked = {"num_shards": shards, "accumulation_steps": accumulation, "settings": settings}
    ours = trainer(folder_of(tmp_path), **asked, max_steps=1)
    ours.learner.begin(None)
    workload, config = ours.loaded.workload, ours.config
    first = {name: p.detach().clone() for name, p in ours.learner.model.named_parameters()}
    model = workload.model().double()
    model.load_state_dict({name: value.double() for name, value in first.items()})
    train_set = load_split(workload, "train")
    order = epoch_order(workload, train_set, config.seed, 0)[: config.batch_size]  # type: ignore[arg-type]
    batch = workload.prepare(fetch(train_set, order), None)  # type: ignore[arg-type]
    loss = token_mean(model(batch["inputs"]), batch["targets"])
    loss.backward()
    ours.run()
    for name, parameter in ours.learner.model.named_parameters():
        step = first[name] - parameter.detach()
        expected = dict(model.named_parameters())[name].grad
        assert expected is not None
        torch.testing.assert_close(step, expected.float(), rtol=1e-4, atol=1e-6)
    assert ours.progress.metrics["train/loss"] == pytest.approx(loss.item(), rel=1e-5)


def token_mean(outputs: Tensor, targets: Tensor) -> Tensor:
    of_tokens = nn.functional.cross_entropy(
        outputs.flatten(0, 1), targets.flatten(), reduction="none", ignore_index=PADDING
    )
    return of_tokens.sum() / int((targets != PADDING).sum())


@pytest.mark.promise("epoch-order")
@pytest.mark.promise("several-optimizers")
@pytest.mark.promise("weighed")
def test_it_ends_with_the_same_bits_on_two_workers_and_after_a_kill(tmp_path: Path) -> None:
    storage = str(tmp_path)
    asked = CONFIG | {"settings": {"num_empty": 9}, "checkpoint_every_steps": 1}
    config = TrainConfig(**asked)
    # Fitted once: a set of words has another order in each process.
    fitted = alone.fitted_by(config)
    for run in ("one", "two", "killed"):
        alone.create(folder_of(tmp_path, run), config, fitted=fitted)
    expected = train(storage, "one", attempt=1, workers=1, config=asked)
    assert train(storage, "two", attempt=1, workers=2, config=asked) == expected
    dies = {"point": "before_step", "step": 5, "rank": 1, "after": 3}
    train(storage, "killed", attempt=1, workers=2, config=asked, **dies)
    resumed = train(storage, "killed", attempt=2, workers=1, config=asked)
    assert resumed["digest"] == expected["digest"]


@pytest.mark.parametrize("eval_batch_size", [1, 4, 64])
def test_the_loss_of_a_split_is_the_mean_over_its_tokens(eval_batch_size: int) -> None:
    workload = Tagger(TaggerSettings())
    train_set = load_split(workload, "train")
    fit(workload, train_set)
    torch.manual_seed(0)
    model = workload.model()
    config = TrainConfig(**CONFIG | {"eval_batch_size": eval_batch_size})
    measured = [
        measure_shard(workload, model, train_set, config, shard, torch.device("cpu"))  # type: ignore[arg-type]
        for shard in range(2)
    ]
    batch = workload.prepare(fetch(train_set, np.arange(len(train_set))), None)  # type: ignore[arg-type]
    expected = token_mean(model(batch["inputs"]), batch["targets"])
    found = merge(split_metrics(workload), measured)["loss"]
    assert found == pytest.approx(float(expected), rel=1e-6)


def test_a_step_without_a_token_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="is 0 for all batches of a step"):
        trainer(folder_of(tmp_path), settings={"num_empty": 50}).run()


def test_a_weight_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"weight\(\) of Negative gives -1.0"):
        trainer(folder_of(tmp_path), "Negative").run()


@pytest.mark.parametrize("name", ["Short", "Beyond"])
def test_an_order_of_other_samples_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="give an index from 0 to 49 for each"):
        trainer(folder_of(tmp_path), name).run()


@pytest.mark.promise("epoch-order")
def test_an_order_has_each_class_as_often_and_another_one_in_each_epoch() -> None:
    workload = Tagger(TaggerSettings(num_train=600))
    dataset = CollatedDataset(Sentences("train", 600, 0), workload.collate)
    orders = [epoch_order(workload, dataset, 3, epoch) for epoch in (0, 1, 0)]
    assert np.array_equal(orders[0], orders[2])
    assert not np.array_equal(orders[0], orders[1])
    first = np.array([tags[0] for _, tags in Sentences("train", 600, 0).samples])
    # 200 each, and five standard deviations of a drawn number of 200.
    assert np.abs(np.bincount(first[orders[0]], minlength=3) - 200).max() < 60


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, ("validation/loss", "min")),
        ({"monitor": "validation/loss"}, ("validation/loss", "min")),
        ({"monitor_order": "max"}, ("validation/loss", "max")),
        ({"monitor": "validation/accuracy"}, ("validation/accuracy", "max")),
        ({"monitor": "validation/f1", "monitor_order": "min"}, ("validation/f1", "min")),
    ],
)
def test_what_is_not_asked_for_is_the_workloads_monitor(
    asked: dict[str, str], found: tuple[str, str]
) -> None:
    config = with_monitor(TrainConfig(workload="tests.rank.tagger:Tagger", **asked))
    assert (config.monitor, config.monitor_order) == found


def test_a_batch_without_a_token_adds_nothing_where_outputs_are_masked() -> None:
    scores = torch.zeros(3, requires_grad=True)
    outputs = {"logits": scores.masked_fill(torch.tensor([True, False, False]), -torch.inf)}
    loss = nothing_of(outputs)
    loss.backward()
    assert float(loss.detach()) == 0
    assert scores.grad is not None
    assert scores.grad.tolist() == [0, 0, 0]
    with pytest.raises(WorkloadError, match="no tensors that are found"):
        nothing_of(object())


def test_combined_optimizers_may_be_nested_and_copied() -> None:
    weights = [nn.Parameter(torch.ones(2)) for _ in range(3)]
    first, second, third = (torch.optim.AdamW([one]) for one in weights)
    combined = CombinedOptimizer(first, CombinedOptimizer(second, third))
    sum(one.sum() for one in weights).backward()  # type: ignore[union-attr]  # a tensor
    combined.step()
    assert combined.state_dict()["state"].keys() == {0, 1, 2}
    copied = deepcopy(combined)
    assert [one.param_groups for one in copied.optimizers] == [[g] for g in copied.param_groups]
    with pytest.raises(WorkloadError, match="takes no group later"):
        combined.add_param_group({"params": [nn.Parameter(torch.ones(1))]})


def test_an_epochs_loss_is_the_mean_over_its_tokens(tmp_path: Path) -> None:
    settings = {"is_plain": True, "balances": False, "num_empty": 20}
    ours = trainer(folder_of(tmp_path), settings=settings, epochs=1, batch_size=8)
    losses, weights = [], []
    add_loss = ours.progress.add_loss

    def note(loss: float, weight: float) -> None:
        losses.append(loss)
        weights.append(weight)
        add_loss(loss, weight)

    ours.progress.add_loss = note  # type: ignore[method-assign]
    ours.run()
    train_set = load_split(ours.loaded.workload, "train")
    tags = [tag for _, tags in (train_set[i] for i in range(50)) for tag in tags]  # type: ignore[index]
    assert sum(weights) == pytest.approx(sum(tag != PADDING for tag in tags))
    expected = np.average(losses, weights=weights)
    assert ours.progress.metrics["train/epoch_loss"] == pytest.approx(expected)


def test_a_functions_order_is_its_trainers_until_it_is_recorded() -> None:
    config = TrainConfig(train_fn="package.module:function", monitor="loss")
    assert with_monitor(config) == config
    assert with_defaults(config).monitor_order == "max"


def test_a_run_goes_on_with_the_order_that_it_began_with(tmp_path: Path) -> None:
    asked = TrainConfig(**CONFIG | {"monitor_order": ""})
    begun = asked.model_copy(update={"monitor_order": "max"})
    alone.create(folder_of(tmp_path), begun)
    request = DriverRequest(config=asked, storage=str(tmp_path), run="run")
    assert effective(request).monitor_order == "max"
