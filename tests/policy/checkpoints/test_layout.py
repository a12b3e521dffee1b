from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train_core.policy.checkpoints.layout import (
    PlannedFile,
    TensorInfo,
    assign,
    file_names,
    part_of,
    plan_files,
    plan_row_files,
)
from train_core.policy.samples.sharding import rows_of_rank

PARTS = st.sampled_from(["model", "optimizer", "workload", "streams"])


@st.composite
def states(draw: st.DrawFn) -> list[TensorInfo]:
    sizes = draw(st.lists(st.tuples(PARTS, st.integers(0, 1000), st.booleans()), max_size=30))
    return [
        TensorInfo(f"{part}/t{number}", size, is_frozen and part == "model")
        for number, (part, size, is_frozen) in enumerate(sizes)
    ]


def check_complete(planned: list[PlannedFile], tensors: list[TensorInfo]) -> None:
    """Each tensor is in one file, which is its part's."""
    assert Counter(path for file in planned for path in file.paths) == Counter(
        tensor.path for tensor in tensors
    )
    assert len({file.name for file in planned}) == len(planned)
    for file in planned:
        assert {path.partition("/")[0] for path in file.paths} == {part_of(file.name)}


@given(states(), st.integers(1, 8))
def test_every_tensor_is_in_one_file_of_its_part(tensors: list[TensorInfo], shards: int) -> None:
    planned = plan_files(tensors, shards)
    check_complete(planned, tensors)
    assert all(0 <= file.shard < shards for file in planned)
    frozen = {path for file in planned if file.is_frozen for path in file.paths}
    assert frozen == {tensor.path for tensor in tensors if tensor.is_frozen}
    # Rank 0, which commits, has the weights: it looks for NaN in them.
    assert all(file.shard == 0 for file in planned if part_of(file.name) == "model")


def test_the_names_are_those_of_published_models() -> None:
    model = TensorInfo("model/w", 10)
    frozen = TensorInfo("model/f", 10, is_frozen=True)
    moments = [TensorInfo(f"optimizer/{i}", 10) for i in range(2)]
    assert [file.name for file in plan_files([model, *moments], 1)] == [
        "model.safetensors",
        "optimizer.safetensors",
    ]
    assert [(file.name, file.shard) for file in plan_files([model, frozen, *moments], 3)] == [
        ("model-00001-of-00002.safetensors", 0),
        ("model-00002-of-00002.safetensors", 0),
        ("optimizer-00001-of-00002.safetensors", 1),
        ("optimizer-00002-of-00002.safetensors", 2),
    ]


@pytest.mark.promise("cheap-checkpoints")
@given(st.integers(1, 100), st.integers(2, 8))
def test_adam_is_shared_evenly(num_tensors: int, shards: int) -> None:
    """With weights of one size, no shard writes more than the model or a fair share and one."""
    tensors = [TensorInfo(f"model/{i}", 4) for i in range(num_tensors)]
    tensors += [TensorInfo(f"optimizer/{i}/{m}", 4) for i in range(num_tensors) for m in "ab"]
    loads = [0] * shards
    for file in plan_files(tensors, shards):
        loads[file.shard] += 4 * len(file.paths)
    assert max(loads) <= max(4 * num_tensors, sum(loads) / shards + 4)


@given(states(), st.integers(1, 4), st.sets(PARTS))
def test_files_of_rows_have_every_rank_s_rows_and_all_else_once(
    tensors: list[TensorInfo], world_size: int, cut: set[str]
) -> None:
    in_rows = {tensor.path for tensor in tensors if tensor.part in cut}
    planned = [
        file
        for rank in range(world_size)
        for file in plan_row_files(tensors, in_rows, rank, world_size)
    ]
    assert len({file.name for file in planned}) == len(planned)
    counts = Counter(path for file in planned for path in file.paths)
    assert counts == Counter({t.path: world_size if t.path in in_rows else 1 for t in tensors})


@given(st.integers(0, 50), st.integers(1, 8))
def test_the_rows_of_all_ranks_are_all_rows(num_rows: int, world_size: int) -> None:
    rows = [rows_of_rank(num_rows, world_size, rank) for rank in range(world_size)]
    assert [row for of_rank in rows for row in of_rank] == list(range(num_rows))


@given(st.lists(st.integers(0, 100), max_size=20), st.integers(1, 5))
def test_nobody_has_more_than_a_fair_share_and_the_largest_piece(
    sizes: list[int], workers: int
) -> None:
    loads = [0] * workers
    for worker, size in zip(assign(sizes, loads), sizes, strict=True):
        loads[worker] += size
    assert max(loads) <= sum(sizes) / workers + max(sizes, default=0)


def test_other_files_have_no_part() -> None:
    assert [part_of(name) for name in (*file_names("a-b", 2), "state.json", "x.json")] == [
        "a-b",
        "a-b",
        None,
        None,
    ]
