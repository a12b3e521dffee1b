"""Which sample is at which position of an epoch's order, derived from the seed and the epoch.

A stream has an order of its own (`datasets/protocols.py`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from train_core.policy.samples.randomness import ORDER, derive_seed


def sample_order(seed: int, epoch: int, num_samples: int) -> npt.NDArray[np.int64]:
    """The order in which `epoch` visits the samples: a permutation, shape (num_samples,)."""
    generator = np.random.Generator(np.random.Philox(derive_seed(seed, ORDER, epoch)))
    return generator.permutation(num_samples)
