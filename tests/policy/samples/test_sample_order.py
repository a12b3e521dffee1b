from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from train_core.policy.samples.sample_order import order_generator

SEEDS = st.integers(0, 2**63 - 1)


@given(SEEDS, st.integers(0, 1000), st.integers(0, 500))
def test_an_epoch_visits_every_sample_once(seed: int, epoch: int, num_samples: int) -> None:
    order = order_generator(seed, epoch).permutation(num_samples)
    assert sorted(order) == list(range(num_samples))
    assert np.array_equal(order, order_generator(seed, epoch).permutation(num_samples))


def test_each_epoch_and_seed_has_an_order_of_its_own() -> None:
    orders = {
        tuple(order_generator(seed, epoch).permutation(50))
        for seed in range(5)
        for epoch in range(5)
    }
    assert len(orders) == 25
