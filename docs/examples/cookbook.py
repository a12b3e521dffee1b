"""Short workloads of other models than a classifier of rows: what is special about each of them.

All are trained on small data that are made here or come with scikit-learn. `cookbook_tables.py`
has the recipes for tables and series.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from sklearn.datasets import load_digits, make_moons
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torchmetrics import MeanAbsoluteError, MeanMetric, Metric
from torchmetrics.classification import BinaryJaccardIndex, MulticlassAccuracy

from train_core import (
    SPLITS,
    ArrayDataset,
    Batch,
    Columns,
    CombinedOptimizer,
    Dataset,
    SampleRandom,
    Settings,
    Split,
    Stream,
    Workload,
)


class RecipeSettings(Settings):
    """What may be set from outside, with its limits."""

    learning_rate: float = Field(default=1e-2, gt=0, description="AdamW's learning rate.")


class Recipe(Workload[RecipeSettings]):
    """What most recipes share: AdamW, a mean squared error, and checkpoints ranked by the loss."""

    Settings = RecipeSettings
    target_columns: ClassVar[tuple[str, ...]] = ("target",)
    monitor = "validation/loss"
    monitor_order: ClassVar[Literal["max", "min"]] = "min"

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """AdamW for all parameters."""
        return torch.optim.AdamW(model.parameters(), lr=self.settings.learning_rate)

    def loss(self, outputs: Any, batch: Batch) -> Tensor:
        """The mean squared error."""
        return functional.mse_loss(outputs, batch["targets"])

    def metrics(self) -> Mapping[str, Metric]:
        """Nothing beside the loss."""
        return {}

    def predictions(self, outputs: Any) -> Mapping[str, Tensor]:
        """What the model gives."""
        return {"prediction": outputs}


def generator_of(split: Split) -> np.random.Generator:
    """What the invented data of a split are drawn from: the same in every process."""
    return np.random.default_rng(SPLITS.index(split))


def rows_of(split: Split, num_rows: int) -> npt.NDArray[np.bool_]:
    """Which rows a split has: three fifths, one fifth and one fifth."""
    parts = {"train": (0, 1, 2), "validation": (3,), "test": (4,)}[split]
    return np.isin(np.arange(num_rows) % 5, parts)


def places(values: npt.NDArray[Any], known: Sequence[Any]) -> Tensor:
    """The place of each value in `known`, from 1 on; 0 for a value that is not there."""
    place_of = {value: place for place, value in enumerate(known, start=1)}
    return torch.tensor([place_of.get(value, 0) for value in values])


PADDING, START, UNKNOWN = range(3)


class WordModel(nn.Module):
    """Reads a text from left to right."""

    def __init__(self, num_words: int) -> None:
        super().__init__()
        self.vectors = nn.Embedding(num_words, 16, padding_idx=PADDING)
        self.reader = nn.GRU(16, 32, batch_first=True)
        self.head = nn.Linear(32, num_words)

    def forward(self, words: Tensor) -> Tensor:
        """For each word the logits of its successor, shape (samples, words, vocabulary)."""
        states, _ = self.reader(self.vectors(words))
        logits: Tensor = self.head(states)
        return logits


class NextWord(Recipe):
    """Which word comes next: a small language model."""

    target_columns = ()

    def dataset(self, split: Split) -> ArrayDataset:
        """Texts of one to four clauses of four words."""
        random = generator_of(split)
        words = (("the", "a"), ("cat", "dog", "bird"), ("sees", "hears", "likes"), ("it", "him"))
        texts = [
            " and ".join(
                " ".join(random.choice(choices) for choices in words)
                for _ in range(random.integers(1, 5))
            )
            for _ in range(200)
        ]
        return ArrayDataset(text=np.array(texts, object))

    def fit(self, train: Dataset | Stream) -> dict[str, Any]:
        """The words that come twice: by the others the model learns what an unknown word is."""
        assert isinstance(train, ArrayDataset)
        counts = Counter(word for text in train.columns["text"] for word in text.split())
        return {"words": sorted(word for word, count in counts.items() if count > 1)}

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        """The place of each word in the vocabulary; padding up to the longest text."""
        place_of = {word: place for place, word in enumerate(self.fitted["words"], UNKNOWN + 1)}
        texts = [
            torch.tensor([START, *(place_of.get(word, UNKNOWN) for word in text.split())])
            for text in columns["text"]
        ]
        return {"inputs": pad_sequence(texts, batch_first=True, padding_value=PADDING)}

    def model(self) -> nn.Module:
        """As large as the vocabulary."""
        return WordModel(UNKNOWN + 1 + len(self.fitted["words"]))

    def forward(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """The logits at each word, and those at the text's last one, before the padding."""
        logits = model(batch["inputs"])
        last = (batch["inputs"] != PADDING).sum(dim=1) - 1
        return {"logits": logits, "next": logits[torch.arange(len(last)), last]}

    def loss(self, outputs: dict[str, Tensor], batch: Batch) -> Tensor:
        """The mean cross-entropy over the words that follow another one."""
        logits, targets = outputs["logits"][:, :-1], batch["inputs"][:, 1:]
        return functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=PADDING
        )

    def weight(self, batch: Batch) -> Tensor:
        """How many words the loss is a mean over."""
        return (batch["inputs"][:, 1:] != PADDING).sum()

    def predictions(self, outputs: dict[str, Tensor]) -> Mapping[str, Tensor]:
        """The likeliest next word, as its place, and the probabilities of all words."""
        probabilities = outputs["next"].softmax(dim=1)
        return {"prediction": probabilities.argmax(dim=1), "probabilities": probabilities}


class BucketedWords(NextWord):
    """Trains on texts of about the same length at a time, so that there is little padding."""

    def order(self, train: Dataset, random: np.random.Generator) -> npt.NDArray[np.int64]:
        """Shuffled, and sorted by length within chunks of 64 texts."""
        assert isinstance(train, ArrayDataset)
        lengths = np.array([len(text.split()) for text in train.columns["text"]])
        shuffled = random.permutation(len(train))
        chunks = np.split(shuffled, range(64, len(shuffled), 64))
        return np.concatenate([chunk[np.argsort(lengths[chunk])] for chunk in chunks])


class Rivals(nn.Module):
    """A generator of points, and a critic that tells them from real ones."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))
        self.critic = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

    def forward(self, noise: Tensor, real: Tensor | None = None) -> dict[str, Tensor]:
        """The points that are made of the noise and, given real ones, what the critic says."""
        made = self.generator(noise)
        if real is None:
            return {"made": made}
        fixed = {name: weights.detach() for name, weights in self.critic.named_parameters()}
        return {
            "made": made,
            "real": self.critic(real),
            "fake": self.critic(made.detach()),
            "fooled": functional_call(self.critic, fixed, (made,)),
        }


class Gan(Recipe):
    """Points on a circle, made of noise."""

    monitor = "validation/radius_error"

    def dataset(self, split: Split) -> ArrayDataset:
        """Points on a circle, and noise; who uses the model sends noise only."""
        random = generator_of(split)
        angles = random.uniform(0, 2 * np.pi, 256)
        points = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        return ArrayDataset(target=points, noise=random.uniform(-1, 1, (256, 2)))

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        """In training other noise in each epoch."""
        noise = columns["noise"] if random is None else 2 * random.uniform(2) - 1
        batch = {"noise": torch.from_numpy(noise).float()}
        if "target" in columns:
            batch["real"] = torch.from_numpy(columns["target"]).float()
        return batch

    def model(self) -> nn.Module:
        """Both networks."""
        return Rivals()

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """One for each network; both make a step at a time."""
        rate = self.settings.learning_rate
        return CombinedOptimizer(
            torch.optim.Adam(model.generator.parameters(), lr=rate / 2, betas=(0.5, 0.9)),
            torch.optim.Adam(model.critic.parameters(), lr=rate, betas=(0.5, 0.9)),
        )

    def forward(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """All that the losses of both need."""
        outputs: dict[str, Tensor] = model(batch["noise"], batch.get("real"))
        return outputs

    def loss(self, outputs: dict[str, Tensor], batch: Batch) -> Tensor:
        """The critic's two terms, of which the generator has no gradient, and the generator's."""
        of_critic = functional.softplus(-outputs["real"]) + functional.softplus(outputs["fake"])
        return (of_critic + functional.softplus(-outputs["fooled"])).mean()

    def metrics(self) -> Mapping[str, Metric]:
        """How far the points are from the circle: the loss of two rivals does not fall."""
        return {"radius_error": MeanAbsoluteError()}

    def update_metric(
        self, metric: Metric, outputs: dict[str, Tensor], batch: Batch, name: str = ""
    ) -> None:
        """A point of the circle has radius 1."""
        radius = outputs["made"].norm(dim=1)
        metric.update(radius, torch.ones_like(radius))

    def predictions(self, outputs: dict[str, Tensor]) -> Mapping[str, Tensor]:
        """The points."""
        return {"prediction": outputs["made"]}


class Tastes(nn.Module):
    """A vector for each user and item; 0, the unknown one, has a vector of zeros."""

    def __init__(self, num_users: int, num_items: int) -> None:
        super().__init__()
        self.users = nn.Embedding(num_users + 1, 8, padding_idx=0)
        self.items = nn.Embedding(num_items + 1, 8, padding_idx=0)
        for vectors in (self.users, self.items):
            vectors.weight.data *= 0.3

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        """The score of each item, of shape (users, items of each user)."""
        return (self.users(users)[:, None] * self.items(items)).sum(dim=2)


class Recommender(Recipe):
    """Which items a user likes, from pairs of a user and an item that he chose."""

    target_columns = ("not_chosen",)

    def dataset(self, split: Split) -> ArrayDataset:
        """A user likes a quarter of the items; the pairs are dealt out to the splits."""
        user, item = np.divmod(np.arange(100 * 40), 40)
        likes = (user + item) % 4 == 0
        chosen = np.random.default_rng(0).permutation(np.flatnonzero(likes))
        rows = chosen[rows_of(split, len(chosen))]
        # Fixed, so that each validation ranks the same pairs.
        not_chosen = (item[rows] + 1 + np.arange(len(rows)) % 3) % 40
        return ArrayDataset(user=user[rows], item=item[rows], not_chosen=not_chosen)

    def fit(self, train: Dataset | Stream) -> dict[str, Any]:
        """The users and items that there are."""
        assert isinstance(train, ArrayDataset)
        return {name: sorted(set(train.columns[name].tolist())) for name in ("user", "item")}

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        """In training with four items for each pair that are drawn, in each epoch others."""
        known = self.fitted["item"]
        items = [places(columns["item"], known)[:, None]]
        if random is not None:
            items.append(torch.from_numpy(random.integers(1, len(known) + 1, 4)))
        elif "not_chosen" in columns:
            items.append(places(columns["not_chosen"], known)[:, None])
        return {
            "users": places(columns["user"], self.fitted["user"]),
            "items": torch.cat(items, dim=1),
        }

    def model(self) -> nn.Module:
        """With dense gradients: sparse ones are refused on several shards."""
        return Tastes(len(self.fitted["user"]), len(self.fitted["item"]))

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        """The score of the item, in the first column, and of the others."""
        scores: Tensor = model(batch["users"], batch["items"])
        return scores

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """The chosen item is to have a higher score than each of the others."""
        return -functional.logsigmoid(outputs[:, :1] - outputs[:, 1:]).mean()

    def metrics(self) -> Mapping[str, Metric]:
        """How often it has."""
        return {"ranked_right": MeanMetric()}

    def update_metric(self, metric: Metric, outputs: Tensor, batch: Batch, name: str = "") -> None:
        """A 1 for each pair that is ranked right."""
        metric.update((outputs[:, :1] > outputs[:, 1:]).float())

    def predictions(self, outputs: Tensor) -> Mapping[str, Tensor]:
        """The score of the row's item."""
        return {"prediction": outputs[:, 0]}


class TwoEncoders(nn.Module):
    """Gives both halves of an image a vector of length 1."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (
            nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16)) for _ in range(2)
        )

    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """The vectors of both halves."""
        return (
            functional.normalize(self.left(left), dim=1),
            functional.normalize(self.right(right), dim=1),
        )


class Contrastive(Recipe):
    """Which right half belongs to a left half: each batch is a question with that many answers."""

    target_columns = ()

    def dataset(self, split: Split) -> ArrayDataset:
        """The halves of scikit-learn's digits."""
        images = load_digits().images / 16
        images = images[rows_of(split, len(images))]
        return ArrayDataset(left=images[:, :, :4], right=images[:, :, 4:])

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        """The pixels of both halves."""
        return {
            name: torch.from_numpy(columns[name]).float().flatten(1) for name in ("left", "right")
        }

    def model(self) -> nn.Module:
        """An encoder for each half."""
        return TwoEncoders()

    def forward(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """The vectors of both halves."""
        outputs: tuple[Tensor, Tensor] = model(batch["left"], batch["right"])
        return outputs

    def loss(self, outputs: tuple[Tensor, Tensor], batch: Batch) -> Tensor:
        """Of all halves in the batch the own one is to be the most similar, in both directions."""
        left, right = outputs
        similarities = left @ right.T / 0.1
        own = torch.arange(len(left), device=left.device)
        return (
            functional.cross_entropy(similarities, own)
            + functional.cross_entropy(similarities.T, own)
        ) / 2

    def predictions(self, outputs: tuple[Tensor, Tensor]) -> Mapping[str, Tensor]:
        """How similar the row's halves are, and the vector of the left one."""
        left, right = outputs
        return {"prediction": (left * right).sum(dim=1), "left_vector": left}


class Segmentation(Recipe):
    """Which pixels of a noisy image belong to the bright rectangle."""

    target_columns = ("mask",)
    monitor = "validation/iou"
    monitor_order = "max"

    def dataset(self, split: Split) -> ArrayDataset:
        """Images of 16 x 16 pixels, and masks of the same shape."""
        random = generator_of(split)
        top, left = random.integers(0, 10, (2, 160, 1, 1))
        row, column = np.arange(16)[:, None], np.arange(16)
        mask = (row >= top) & (row < top + 6) & (column >= left) & (column < left + 6)
        return ArrayDataset(image=mask + random.normal(0, 0.5, mask.shape), mask=mask)

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        """In training half of the images are mirrored, with their masks."""
        images, masks = columns["image"], columns.get("mask")
        if random is not None and masks is not None:
            is_mirrored = (random.uniform() < 0.5)[:, None, None]
            images = np.where(is_mirrored, images[:, :, ::-1], images)
            masks = np.where(is_mirrored, masks[:, :, ::-1], masks)
        batch = {"inputs": torch.from_numpy(images).float()[:, None]}
        if masks is not None:
            batch["targets"] = torch.from_numpy(masks).float()
        return batch

    def model(self) -> nn.Module:
        """Three convolutions that keep the image's size; the last dimension of one is left out."""
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 1, 1),
            nn.Flatten(1, 2),
        )

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """The mean over the pixels; all images have as many."""
        return functional.binary_cross_entropy_with_logits(outputs, batch["targets"])

    def metrics(self) -> Mapping[str, Metric]:
        """Intersection over union, of the counts of all pixels."""
        return {"iou": BinaryJaccardIndex()}

    def update_metric(self, metric: Metric, outputs: Tensor, batch: Batch, name: str = "") -> None:
        """Of classes, and not of logits."""
        metric.update((outputs > 0).long(), batch["targets"].long())

    def predictions(self, outputs: Tensor) -> Mapping[str, Tensor]:
        """A mask for each image, and the probability of each pixel."""
        return {"prediction": outputs > 0, "probabilities": outputs.sigmoid()}


class SemiSupervised(Recipe):
    """Two moons of points, of which one in 20 has a label; -1 is no label."""

    target_columns = ("label",)
    class_names = ("upper", "lower")
    monitor = "validation/accuracy"
    monitor_order = "max"

    def dataset(self, split: Split) -> ArrayDataset:
        """All points of validation and test have their labels."""
        points, labels = make_moons(400, noise=0.1, random_state=SPLITS.index(split))
        if split == "train":
            labels = np.where(np.arange(len(labels)) % 20 == 0, labels, -1)
        return ArrayDataset(point=points, label=labels)

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        """In training two views of each point, with a small error each."""
        points = torch.from_numpy(columns["point"]).float()
        batch = {"inputs": points}
        if random is not None:
            errors = torch.from_numpy(random.uniform(2, 2)).float() - 0.5
            batch = {"inputs": points + 0.2 * errors[:, 0], "other": points + 0.2 * errors[:, 1]}
        if "label" in columns:
            batch["targets"] = torch.from_numpy(columns["label"])
        return batch

    def model(self) -> nn.Module:
        """A small network."""
        return nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """The logits of each view that there is."""
        return {name: model(batch[name]) for name in ("inputs", "other") if name in batch}

    def loss(self, outputs: dict[str, Tensor], batch: Batch) -> Tensor:
        """The mean over all rows of what each contributes: its label's part, and its views'."""
        of_rows = functional.cross_entropy(
            outputs["inputs"], batch["targets"], ignore_index=-1, reduction="none"
        )
        if "other" in outputs:
            one, other = outputs["inputs"].softmax(dim=1), outputs["other"].softmax(dim=1)
            of_rows = 20 * of_rows + 2 * (other - one.detach()).square().sum(dim=1)
        return of_rows.mean()

    def metrics(self) -> Mapping[str, Metric]:
        """The share of the points whose class is right."""
        return {"accuracy": MulticlassAccuracy(num_classes=2, average="micro")}

    def update_metric(
        self, metric: Metric, outputs: dict[str, Tensor], batch: Batch, name: str = ""
    ) -> None:
        """Of the points themselves: outside of training there is no other view."""
        metric.update(outputs["inputs"], batch["targets"])

    def predictions(self, outputs: dict[str, Tensor]) -> Mapping[str, Tensor]:
        """The likelier class and both probabilities."""
        probabilities = outputs["inputs"].softmax(dim=1)
        return {"prediction": probabilities.argmax(dim=1), "probabilities": probabilities}
