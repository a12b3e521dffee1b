from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from train_core.policy.samples.sharding import shards_of_rank
from train_core.policy.samples.steps import BatchOptions, MicroBatch, StepPlan, in_order


@st.composite
def plans(draw: st.DrawFn) -> tuple[StepPlan, int]:
    """A plan, and a number of ranks that can share its shards."""
    num_shards = draw(st.integers(1, 9))
    plan = StepPlan(
        num_samples=draw(st.integers(1, 60)),
        options=BatchOptions(
            batch_size=draw(st.integers(1, 40)), accumulation_steps=draw(st.integers(1, 4))
        ),
        num_shards=num_shards,
    )
    return plan, draw(st.integers(1, num_shards))


def passes(plan: StepPlan, step: int, world_size: int) -> list[list[MicroBatch]]:
    """Each rank's passes of a step, one after the other."""
    return [
        [micro for micros in plan.equal_passes(1, step, world_size, rank) for micro in micros]
        for rank in range(world_size)
    ]


@given(plans(), st.data())
def test_all_ranks_do_equally_many_passes_and_no_rank_more_than_it_must(
    planned: tuple[StepPlan, int], data: st.DataObject
) -> None:
    plan, world_size = planned
    step = data.draw(st.integers(0, plan.steps_per_epoch - 1))
    of_ranks = passes(plan, step, world_size)
    assert len({len(of_rank) for of_rank in of_ranks}) == 1
    assert all(micro.weight > 0 for micro in of_ranks[0])


@given(plans(), st.data())
def test_padding_follows_the_real_micro_batches_and_repeats_the_first_of_the_step(
    planned: tuple[StepPlan, int], data: st.DataObject
) -> None:
    plan, world_size = planned
    step = data.draw(st.integers(0, plan.steps_per_epoch - 1))
    first = passes(plan, step, 1)[0][0]
    for rank in range(world_size):
        shards = shards_of_rank(plan.num_shards, world_size, rank)
        real = list(plan.micro_batches(1, step, shards))
        padded = plan.equal_passes(1, step, world_size, rank)
        kept = [micros[: len(of_shard)] for micros, of_shard in zip(padded, real, strict=True)]
        assert kept == real
        assert padded[:-1] == real[:-1]
        assert all(micro == replace(first, weight=0) for micro in padded[-1][len(real[-1]) :])


@given(plans())
def test_a_plan_needs_padding_if_any_step_does(planned: tuple[StepPlan, int]) -> None:
    plan, world_size = planned
    weights = [
        micro.weight
        for step in range(plan.steps_per_epoch)
        for of_rank in passes(plan, step, world_size)
        for micro in of_rank
    ]
    assert plan.needs_padding(world_size) == (0 in weights)


@given(plans(), st.data())
def test_a_rank_passes_through_its_shards_in_order_and_ends_each_once(
    planned: tuple[StepPlan, int], data: st.DataObject
) -> None:
    plan, world_size = planned
    step = data.draw(st.integers(0, plan.steps_per_epoch - 1))
    shards = shards_of_rank(plan.num_shards, world_size, data.draw(st.integers(0, world_size - 1)))
    work = list(plan.micro_batches(1, step, shards))
    passes = list(in_order(shards, work))
    assert [one.shard for one in passes if one.is_last] == list(shards)
    assert [one.shard for one in passes] == sorted(one.shard for one in passes)
    for shard, micro_batches in zip(shards, work, strict=True):
        of_shard = [one for one in passes if one.shard == shard]
        assert of_shard[-1].is_last
        assert [one.micro_batch for one in of_shard] == (micro_batches or [None])


@given(plans(), st.integers(1, 200))
def test_a_pass_of_one_sample_is_known_before(drawn: tuple[StepPlan, int], num_steps: int) -> None:
    plan, _ = drawn
    in_epoch = range(min(num_steps, plan.steps_per_epoch))
    sizes = {
        len(micro.positions)
        for step in in_epoch
        for micros in plan.micro_batches(0, step, range(plan.num_shards))
        for micro in micros
    }
    assert plan.has_lone_samples(num_steps) == (1 in sizes)
