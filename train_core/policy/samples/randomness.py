"""Randomness that is derived from what is computed, never carried from step to step.

Every random number of a run is a function of the run's seed and of *what it is for*: the
forward pass of (step, micro-step, shard), the sample order of an epoch, the augmentation of
(epoch, sample index). Nothing of it has to be saved, and no rank has to be asked.
"""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import numpy.typing as npt

FORWARD, ORDER, AUGMENT, INIT, UPDATE, EVALUATE = range(6)

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def derive_seed(seed: int, purpose: int, *path: int) -> int:
    """A 63-bit seed for one purpose at one place, independent of every other place's."""
    packed = struct.pack(f"<{len(path) + 2}q", seed, purpose, *path)
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little") >> 1


class SampleRandom:
    """Random numbers for a batch of samples, each sample's own whatever batch it is in.

    The k-th draw for sample i is a hash of (seed, epoch, i, k), computed for the whole batch
    at once, so the augmentation of a sample does not depend on the worker that fetched it,
    or on the samples beside it.

    >>> SampleRandom(seed=1, epoch=0, indices=np.arange(4)).uniform(2).shape
    (4, 2)
    """

    def __init__(self, seed: int, epoch: int, indices: npt.NDArray[np.int64]) -> None:
        base = np.uint64(derive_seed(seed, AUGMENT, epoch))
        with np.errstate(over="ignore"):
            self._keys = _mix(base + indices.astype(np.uint64) * _GOLDEN)
        self._draws = 0

    def uniform(self, *shape: int) -> npt.NDArray[np.float64]:
        """Numbers in [0, 1), shape (batch, *shape)."""
        width = int(np.prod(shape, dtype=np.int64))
        counters = np.arange(self._draws + 1, self._draws + width + 1, dtype=np.uint64)
        self._draws += width
        with np.errstate(over="ignore"):
            bits = _mix(self._keys[:, None] + counters[None, :] * _GOLDEN)
        floats = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return floats.reshape(len(self._keys), *shape)

    def integers(self, low: int, high: int, *shape: int) -> npt.NDArray[np.int64]:
        """Integers in [low, high), shape (batch, *shape)."""
        return low + (self.uniform(*shape) * (high - low)).astype(np.int64)


def _mix(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable generators, 2014)."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
