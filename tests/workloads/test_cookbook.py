"""The recipes of the cookbook: each is rehearsed, trained, resumed and served."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.rank import alone
from tests.rank.digests import digest_of_training, journal_of
from tests.ranks.processes import train
from tests.workloads.pages import DOCS, EXAMPLES, blocks_of, not_in_files
from train_core import ArrayDataset, Split, Workload, open_run
from train_core.config import TrainConfig
from train_core.datasets.protocols import fetch
from train_core.loading import load_workload
from train_core.policy.samples.randomness import SampleRandom
from train_core.policy.samples.sample_order import order_generator
from train_core.rank.checkpoint.reader import load_state
from train_core.rank.data.fitted import give, load_without_data
from train_core.rank.data.recorded_workload import with_monitor
from train_core.rehearsal.check import rehearse_workload
from train_core.storage.run_folder import RunFolder

PAGE = (DOCS / "cookbook.md").read_text()
RECIPES: dict[str, dict[str, Any]] = {
    "cookbook:NextWord": {},
    "cookbook:BucketedWords": {},
    "cookbook:Gan": {"epochs": 8},
    "cookbook:Recommender": {},
    "cookbook:Contrastive": {"num_shards": 1, "drop_last": True, "epochs": 3},
    "cookbook:Segmentation": {"epochs": 12},
    "cookbook:SemiSupervised": {},
    "cookbook_tables:Flats": {},
    "cookbook_tables:Forecast": {"epochs": 3},
    "cookbook_tables:MissingTargets": {},
    "cookbook_tables:Sales": {"epochs": 3},
    "cookbook_tables:RareClass": {},
    "cookbook_tables:Fold": {},
}
EACH = pytest.mark.parametrize("name", RECIPES)
pytestmark = pytest.mark.usefixtures("examples_are_importable", "one_thread")


@pytest.fixture(scope="module")
def sales(tmp_path_factory: pytest.TempPathFactory, examples_are_importable: None) -> str:
    from cookbook_tables import write_sales

    folder: Path = tmp_path_factory.mktemp("sales")
    write_sales(folder)
    return str(folder)


def config_of(name: str, sales: str, **more: Any) -> TrainConfig:
    given: dict[str, Any] = {
        "workload": name,
        "batch_size": 32,
        "epochs": 6,
        "num_shards": 2,
        "checkpoint_backpressure": "wait",
        "settings": {"sales": sales} if name.endswith(":Sales") else {},
    }
    workload = load_workload(name, given["settings"])
    monitored = {"monitor": workload.monitor, "monitor_order": workload.monitor_order}
    return TrainConfig(**given | monitored | RECIPES[name] | more)


def run(path: Path, config: TrainConfig, attempt: int = 1, name: str = "run") -> RunFolder:
    folder = RunFolder(str(path), name)
    alone.run(folder, attempt, **config.model_dump(exclude_defaults=True))
    return folder


def loaded(name: str, settings: dict[str, Any] | None = None) -> Workload[Any]:
    """A workload that has fitted."""
    config = TrainConfig(workload=name, settings=settings or {})
    workload = load_workload(name, config.settings)
    give(workload, alone.fitted_by(config))
    return workload


def columns_of(workload: Workload[Any], split: Split, *rows: int) -> Any:
    return fetch(workload.dataset(split), np.array(rows))  # type: ignore[arg-type]


def drawn_batch(workload: Workload[Any], *rows: int) -> Any:
    """A batch of training, with its random numbers."""
    random = SampleRandom(0, 0, np.array(rows))
    return workload.prepare(columns_of(workload, "train", *rows), random)


@pytest.mark.promise("cookbook")
def test_the_code_on_the_page_is_that_of_the_files() -> None:
    assert len(blocks_of(PAGE)) > len(RECIPES)
    assert not_in_files(PAGE) == []


def test_the_page_lists_all_recipes_of_the_files() -> None:
    listed = re.findall(r"^\| \[.*\| `(\w+:\w+)` \|$", PAGE, re.MULTILINE)
    assert sorted(listed) == sorted(RECIPES)


@EACH
def test_the_rehearsal_says_nothing_but_what_the_page_says(name: str, sales: str) -> None:
    found = rehearse_workload(with_monitor(config_of(name, sales)))
    assert found.left_out == []
    said = [(one.name, one.is_refused) for one in found.findings]
    assert said == ([("loss", False)] if name == "cookbook:Contrastive" else [])
    if said:
        assert "train on one shard (num_shards 1)" in found.findings[0].message


@EACH
@pytest.mark.promise("cookbook")
def test_it_learns_and_resumes_to_the_same_bits_and_is_served(
    name: str, sales: str, tmp_path: Path
) -> None:
    config = config_of(name, sales)
    trained = run(tmp_path, config)
    epochs = [metrics for _, metrics in journal_of(trained) if "validation/loss" in metrics]
    for metric, less in (
        ("train/epoch_loss", True),
        (config.monitor, config.monitor_order == "min"),
    ):
        # The loss of two rivals does not fall.
        if name != "cookbook:Gan" or metric == config.monitor:
            first, last = epochs[0][metric], epochs[-1][metric]
            assert last < first * 0.9 if less else last > first

    newest = max(trained.checkpoints(), key=lambda one: one.name)
    cut = config.model_copy(update={"max_steps": newest.step // 2 + 1})
    run(tmp_path, cut, name="resumed")
    resumed = run(tmp_path, config, attempt=2, name="resumed")
    assert digest_of_training(resumed) == digest_of_training(trained)

    fitted = alone.fitted_by(config)
    served, workload = load_without_data(config, fitted), load_workload(name, config.settings)
    give(workload, fitted)
    columns = columns_of(workload, "test", *range(16))
    without = {key: value for key, value in columns.items() if key not in workload.target_columns}
    weights = load_state(trained.store, newest)["model"]
    predicted = [
        predictions(one, weights, given) for one, given in ((workload, columns), (served, without))
    ]
    assert predicted[0].keys() == predicted[1].keys()
    assert all(torch.equal(predicted[0][key], predicted[1][key]) for key in predicted[0])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@EACH
def test_it_resumes_to_the_same_bits_on_a_gpu(name: str, sales: str, tmp_path: Path) -> None:
    config = config_of(name, sales, epochs=3, gpus_per_worker=1)
    trained = run(tmp_path, config)
    last = max(trained.checkpoints(), key=lambda one: one.name).step
    run(tmp_path, config.model_copy(update={"max_steps": last // 2 + 1}), name="resumed")
    resumed = run(tmp_path, config, attempt=2, name="resumed")
    assert digest_of_training(resumed) == digest_of_training(trained)


@torch.no_grad()
def predictions(workload: Workload[Any], weights: Any, columns: Any) -> dict[str, torch.Tensor]:
    model = workload.model().eval()
    model.load_state_dict(weights)
    outputs = workload.forward(model, workload.prepare(columns, None))
    return dict(workload.predictions(outputs))


@pytest.mark.slow
@pytest.mark.promise("cookbook")
@pytest.mark.parametrize(
    "name",
    [name for name in RECIPES if name != "cookbook:Contrastive"],
)
def test_it_ends_with_the_same_bits_on_two_workers_and_after_a_kill(
    name: str, sales: str, tmp_path: Path
) -> None:
    config = config_of(name, sales, epochs=2, checkpoint_every_steps=1)
    asked = config.model_dump(mode="json", exclude_defaults=True)
    fitted = alone.fitted_by(config)
    for one in ("one", "killed"):
        alone.create(RunFolder(str(tmp_path), one), config, fitted=fitted)
    expected = train(str(tmp_path), "one", attempt=1, workers=1, config=asked)
    dies: dict[str, Any] = {"point": "before_step", "step": 5, "rank": 1, "after": 3}
    train(str(tmp_path), "killed", attempt=1, workers=2, config=asked, **dies)
    resumed = train(str(tmp_path), "killed", attempt=2, workers=2, config=asked)
    assert resumed["digest"] == expected["digest"]


def test_a_contrastive_loss_is_trained_by_one_worker() -> None:
    with pytest.raises(ValueError, match="a worker computes at least one shard"):
        TrainConfig(workload="cookbook:Contrastive", num_shards=1, num_workers=2)


def test_a_mean_over_words_does_not_depend_on_the_number_of_shards() -> None:
    """The oracle is the loss of all texts in one batch."""
    workload = loaded("cookbook:NextWord")
    torch.manual_seed(0)
    model = workload.model()
    # As they are drawn, all words have about the same loss.
    torch.nn.init.normal_(model.head.weight, std=2)  # type: ignore[union-attr, arg-type]

    def loss(*rows: int) -> tuple[float, float]:
        batch = drawn_batch(workload, *rows)
        value = workload.loss(workload.forward(model, batch), batch)
        return float(value.detach()), float(workload.weight(batch))

    whole, _ = loss(*range(32))
    parts = [loss(*range(12)), loss(*range(12, 32))]
    total = sum(weight for _, weight in parts)
    assert sum(value * weight for value, weight in parts) / total == pytest.approx(whole)
    by_samples = (parts[0][0] * 12 + parts[1][0] * 20) / 32
    assert by_samples != pytest.approx(whole, rel=1e-4)


def test_texts_of_about_the_same_length_have_less_padding() -> None:
    workload = loaded("cookbook:BucketedWords")
    texts = workload.dataset("train")
    lengths = np.array([len(text.split()) for text in texts.columns["text"]])  # type: ignore[union-attr]

    def padding(order: np.ndarray[Any, Any]) -> int:
        batches = np.split(lengths[order], range(16, len(order), 16))
        return sum(int((batch.max() - batch).sum()) for batch in batches)

    first, second = (workload.order(texts, order_generator(0, epoch)) for epoch in (0, 1))  # type: ignore[arg-type]
    assert np.array_equal(np.sort(first), np.arange(len(lengths)))
    assert not np.array_equal(first, second)
    assert padding(first) < padding(order_generator(0, 0).permutation(len(lengths))) / 2


def test_an_unknown_category_has_a_vector_that_was_trained(sales: str, tmp_path: Path) -> None:
    config = config_of("cookbook_tables:Flats", sales)
    trained = run(tmp_path, config)
    newest = max(trained.checkpoints(), key=lambda one: one.name)
    first = min(trained.checkpoints(), key=lambda one: one.name)
    before, after = (load_state(trained.store, one)["model"] for one in (first, newest))
    assert not torch.equal(before["vectors.0.weight"][0], after["vectors.0.weight"][0])
    workload = loaded("cookbook_tables:Flats")
    rows = columns_of(workload, "test", 0)
    unknown = [rows | {"district": np.array([name], object)} for name in ("Hafen", "Moon", None)]
    found = [float(predictions(workload, after, row)["prediction"]) for row in unknown]
    assert found[0] == found[1] == found[2]


def test_each_network_of_a_gan_has_the_gradients_of_its_own_loss() -> None:
    workload = loaded("cookbook:Gan")
    torch.manual_seed(0)
    model, batch = workload.model(), drawn_batch(workload, *range(16))
    workload.loss(workload.forward(model, batch), batch).backward()
    made = model.generator(batch["noise"])
    of_generator = functional.softplus(-model.critic(made)).mean()
    real, fake = model.critic(batch["real"]), model.critic(made)
    of_critic = (functional.softplus(-real) + functional.softplus(fake)).mean()
    for network, loss in ((model.generator, of_generator), (model.critic, of_critic)):
        weights = list(network.parameters())
        expected = torch.autograd.grad(loss, weights, retain_graph=True)
        for weight, gradient in zip(weights, expected, strict=True):
            torch.testing.assert_close(weight.grad, gradient)


def test_an_unknown_user_has_a_vector_of_zeros_that_stays(sales: str, tmp_path: Path) -> None:
    trained = run(tmp_path, config_of("cookbook:Recommender", sales, epochs=1))
    newest = max(trained.checkpoints(), key=lambda one: one.name)
    assert not load_state(trained.store, newest)["model"]["users.weight"][0].any()


def test_a_mask_is_mirrored_with_its_image() -> None:
    workload = loaded("cookbook:Segmentation")
    batch = drawn_batch(workload, *range(64))
    plain = workload.prepare(columns_of(workload, "train", *range(64)), None)
    is_mirrored = (batch["inputs"] != plain["inputs"]).flatten(1).any(1)
    assert 10 < int(is_mirrored.sum()) < 54
    for name in ("inputs", "targets"):
        assert torch.equal(batch[name][is_mirrored], plain[name][is_mirrored].flip(-1))
        assert torch.equal(batch[name][~is_mirrored], plain[name][~is_mirrored])


def test_nothing_of_the_future_is_in_a_forecasts_training() -> None:
    workload = loaded("cookbook_tables:Forecast")
    futures = {}
    for split in ("train", "validation", "test"):
        dataset = workload.dataset(split)
        assert isinstance(dataset, ArrayDataset)
        futures[split] = set(dataset.columns["future"].flat)
        if split == "train":
            known = set(dataset.columns["past"].flat) | futures["train"]
    assert not known & (futures["validation"] | futures["test"])
    assert not futures["validation"] & futures["test"]


def test_nothing_of_the_future_is_in_a_tables_training(sales: str) -> None:
    workload = loaded("cookbook_tables:Sales", {"sales": sales, "validation_from": "2026-06-01"})
    days = {}
    for split in ("train", "validation", "test"):
        dataset = workload.dataset(split)
        assert isinstance(dataset, ArrayDataset)
        days[split] = dataset.columns["day"]
    assert days["train"].max() < np.datetime64("2026-06-01") <= days["validation"].min()
    assert days["validation"].max() < np.datetime64("2026-09-01") <= days["test"].min()
    assert sum(map(len, days.values())) == 10 * 28 * 4


def test_rows_without_a_target_leave_no_nan_in_the_gradients() -> None:
    workload = loaded("cookbook_tables:MissingTargets")
    torch.manual_seed(0)
    model, batch = workload.model(), drawn_batch(workload, *range(32))
    assert batch["targets"].isnan().any()
    workload.loss(workload.forward(model, batch), batch).backward()
    assert all(bool(weight.grad.isfinite().all()) for weight in model.parameters())


def test_the_loss_of_rows_with_and_without_labels_is_a_mean_over_rows() -> None:
    workload = loaded("cookbook:SemiSupervised")
    torch.manual_seed(0)
    model = workload.model()

    def loss(*rows: int) -> float:
        batch = drawn_batch(workload, *rows)
        return float(workload.loss(workload.forward(model, batch), batch).detach())

    # Rows 0 and 20 have labels.
    whole, parts = loss(*range(32)), [loss(*range(8)), loss(*range(8, 16)), loss(*range(16, 32))]
    assert whole == pytest.approx((parts[0] + parts[1] + 2 * parts[2]) / 4)
    assert parts[1] > 0


def test_a_rare_class_comes_as_often_as_the_other() -> None:
    workload = loaded("cookbook_tables:RareClass")
    dataset = workload.dataset("train")
    assert isinstance(dataset, ArrayDataset)
    order = workload.order(dataset, order_generator(0, 0))
    assert dataset.columns["target"].mean() < 0.1
    assert 0.4 < dataset.columns["target"][order].mean() < 0.6


def test_each_row_is_held_out_in_one_fold() -> None:
    held_out = []
    for fold in range(5):
        workload = loaded("cookbook_tables:Fold", {"fold": fold})
        train_rows, rest = (workload.dataset(split) for split in ("train", "validation"))
        assert isinstance(rest, ArrayDataset)
        assert len(train_rows) + len(rest) == 178
        held_out += [tuple(row) for row in rest.columns["values"]]
    assert len(held_out) == len(set(held_out)) == 178


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_script_trains_five_folds_and_says_their_mean(tmp_path: Path) -> None:
    script = EXAMPLES / "cookbook_tables.py"
    command = [sys.executable, str(script)]
    said = subprocess.check_output(command, cwd=tmp_path, text=True).splitlines()[-1]
    runs = [open_run(str(tmp_path / "runs"), f"fold-{fold}") for fold in range(5)]
    found = [one.latest().metrics["validation/accuracy"] for one in runs]
    assert float(said) == pytest.approx(np.mean(found))  # type: ignore[arg-type]
    assert float(said) > 0.9
