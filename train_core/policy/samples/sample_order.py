"""The random numbers of an epoch's order, and orders in which some samples come more often.

A stream has an order of its own (`datasets/protocols.py`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from train_core.errors import WorkloadError
from train_core.policy.samples.randomness import ORDER, derive_seed


def order_generator(seed: int, epoch: int) -> np.random.Generator:
    """What the order of an epoch is drawn from."""
    return np.random.Generator(np.random.Philox(derive_seed(seed, ORDER, epoch)))


def weighted_order(weights: npt.ArrayLike, random: np.random.Generator) -> npt.NDArray[np.int64]:
    """As many indices as there are weights, each drawn with a probability like its weight.

    Raises WorkloadError for weights that are not finite numbers from 0 on, with one above 0.
    """
    given = np.asarray(weights, np.float64)
    total = given.sum()
    if given.ndim != 1 or not np.isfinite(total) or total <= 0 or (given < 0).any():
        raise WorkloadError(
            "weighted_order needs a finite weight from 0 on for each sample, and one above 0"
        )
    return random.choice(len(given), len(given), p=given / total)


def balanced_order(labels: npt.ArrayLike, random: np.random.Generator) -> npt.NDArray[np.int64]:
    """As many indices as there are labels, drawn so that each class comes about as often."""
    _, class_of_sample, counts = np.unique(
        np.asarray(labels), return_inverse=True, return_counts=True
    )
    return weighted_order(1 / counts[class_of_sample], random)
