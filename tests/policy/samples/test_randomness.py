from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from train_core.policy.samples.randomness import (
    AUGMENT,
    FORWARD,
    INIT,
    ORDER,
    SampleRandom,
    derive_seed,
)

SEEDS = st.integers(0, 2**63 - 1)


def draws(seed: int = 1, epoch: int = 0, num_samples: int = 20_000) -> np.ndarray:
    return SampleRandom(seed, epoch, np.arange(num_samples)).uniform(4)


@pytest.mark.promise("sample-randomness")
@given(SEEDS, st.lists(st.integers(0, 2**40), min_size=1, max_size=30), st.data())
def test_a_sample_draws_the_same_whatever_batch_it_is_in(
    seed: int, indices: list[int], data: st.DataObject
) -> None:
    alone = data.draw(st.integers(0, len(indices) - 1))
    batch = SampleRandom(seed, 3, np.array(indices))
    single = SampleRandom(seed, 3, np.array(indices[alone : alone + 1]))
    for shape in ((), (2,), (2, 3)):
        assert np.array_equal(batch.uniform(*shape)[alone], single.uniform(*shape)[0])


@given(SEEDS, st.integers(-1000, 1000), st.integers(1, 2**40))
def test_numbers_stay_in_their_range(seed: int, low: int, width: int) -> None:
    random = SampleRandom(seed, 0, np.arange(50))
    uniform, integers = random.uniform(3), random.integers(low, low + width, 3)
    assert uniform.shape == integers.shape == (50, 3)
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert integers.min() >= low
    assert integers.max() < low + width


def test_a_sample_draws_new_numbers_each_time() -> None:
    random = SampleRandom(1, 0, np.arange(1000))
    together = SampleRandom(1, 0, np.arange(1000)).uniform(2)
    assert np.array_equal(np.stack([random.uniform(), random.uniform()], axis=1), together)
    assert not np.any(together[:, 0] == together[:, 1])


def test_another_seed_or_epoch_draws_other_numbers() -> None:
    assert not np.any(draws() == draws(epoch=1))
    assert not np.any(draws() == draws(seed=2))


def test_the_numbers_are_uniform() -> None:
    # Chi-squared over 100 bins: 99 degrees of freedom, 149 is exceeded once in 1,000 times.
    counts, _ = np.histogram(draws(), bins=100, range=(0, 1))
    expected = counts.sum() / 100
    assert ((counts - expected) ** 2 / expected).sum() < 149


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (draws()[:, 0], draws()[:, 1]),  # two draws of one sample
        (draws()[1:, 0], draws()[:-1, 0]),  # neighbouring samples
        (draws()[:, 0], draws(epoch=1)[:, 0]),
        (draws()[:, 0], draws(seed=2)[:, 0]),
    ],
    ids=["draws", "neighbours", "epochs", "seeds"],
)
def test_the_numbers_are_not_correlated(left: np.ndarray, right: np.ndarray) -> None:
    assert abs(np.corrcoef(left, right)[0, 1]) < 4 / np.sqrt(len(left))


def test_each_purpose_and_place_has_a_seed_of_its_own() -> None:
    seeds = {
        derive_seed(seed, purpose, *path)
        for seed in (0, 1, 2**63 - 1)
        for purpose in (FORWARD, ORDER, AUGMENT, INIT)
        for path in ((), (0,), (0, 0), (1, 0), (0, 1))
    }
    assert len(seeds) == 3 * 4 * 5
    assert all(0 <= seed < 2**63 for seed in seeds)
