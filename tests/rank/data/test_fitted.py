"""What a workload fits is part of its run, and comes back as it was wherever the model is used."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests import commands
from tests.rank import alone
from tests.rank.tagger import Tagger, TaggerSettings
from train_core import Dataset, Stream
from train_core.config import TrainConfig
from train_core.datasets.protocols import fetch
from train_core.errors import CheckpointError, WorkloadError
from train_core.rank.checkpoint.packing import first_difference
from train_core.rank.data.fitted import FITTED_FILE, fit, load_without_data, state_of
from train_core.rank.data.recorded_workload import load_recorded
from train_core.storage.fork import fork_checkpoint
from train_core.storage.run_folder import RunFolder
from train_core.workload import load_split

CONFIG = TrainConfig(
    workload="tests.rank.tagger:Tagger",
    batch_size=16,
    epochs=1,
    monitor="validation/loss",
    monitor_order="min",
)

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(max_size=8)
    | st.builds(lambda n: np.arange(n, dtype=np.float64), st.integers(0, 5))
    | st.builds(lambda n: torch.arange(n, dtype=torch.bfloat16), st.integers(0, 5)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


ELSEWHERE = """
import json, sys
from train_core.config import TrainConfig
from train_core.rank.data.recorded_workload import load_recorded
from train_core.storage.run_folder import RunFolder
workload = load_recorded(RunFolder.at(sys.argv[1]), TrainConfig.model_validate_json(sys.argv[2]))
print(json.dumps(workload.fitted["vocabulary"]))
"""


class Given(Tagger):
    """Fits what it is told to."""

    state: Any = None

    def fit(self, train: Dataset | Stream) -> Any:
        return self.state


def fitted_to(state: Any) -> tuple[Given, bytes | None]:
    workload = Given(TaggerSettings())
    workload.state = state
    return workload, fit(workload, workload.dataset("train"))


@given(VALUES.filter(lambda value: value is not None))
def test_a_state_comes_back_as_it_was(state: Any) -> None:
    workload, data = fitted_to(state)
    assert data is not None
    assert first_difference({"state": state}, {"state": workload.fitted}) == ""
    assert first_difference({"state": state}, {"state": state_of(data)}) == ""


def test_a_state_that_cannot_be_stored_is_refused_by_its_path() -> None:
    with pytest.raises(WorkloadError, match=r"fit\(\) returns cannot be stored.*scaler"):
        fitted_to({"scaler": object()})


@pytest.mark.parametrize(
    ("state", "where"),
    [
        ({"a", "b"}, ""),
        ({"words": [{"a"}]}, " at words/0"),
        ({"words": {frozenset("ab"): 1}}, " at words"),
    ],
)
def test_a_set_is_refused_as_it_has_no_order(state: Any, where: str) -> None:
    with pytest.raises(WorkloadError, match=f"returns has a set{where}, "):
        fitted_to(state)


@pytest.mark.parametrize(
    "array",
    [
        np.unique(["pear", "apple", ""]),
        np.array([["a", "bc"], ["d", "e"]]),
        np.array(["2026-01-01", "NaT"], "datetime64[D]"),
        np.array([1, -5], "timedelta64[ms]"),
        np.array([], "U3"),
    ],
)
def test_arrays_of_texts_and_times_come_back(array: np.ndarray[Any, Any]) -> None:
    workload, _ = fitted_to({"known": array, "first": np.str_("pear")})
    found = workload.fitted["known"]
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes()
    assert type(workload.fitted["first"]) is np.str_


def test_a_fit_without_a_result_is_refused() -> None:
    with pytest.raises(WorkloadError, match=r"fit\(\) of Given returns None"):
        fitted_to(None)


def test_it_is_not_there_before_the_training_split_was_read() -> None:
    with pytest.raises(WorkloadError, match=r"before fit\(\) has had the training split"):
        Tagger(TaggerSettings()).model()


@pytest.mark.promise("fitted")
def test_every_process_has_it_as_it_was_when_the_run_began(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path), "run")
    alone.run(folder, **CONFIG.model_dump(include={"workload", "monitor", "monitor_order"}))
    record = folder.record()
    assert record.fitted is not None
    again = load_recorded(folder, CONFIG).fitted
    # A set of its words would have another order there.
    elsewhere = commands.succeed(
        [sys.executable, "-c", ELSEWHERE, folder.url, CONFIG.model_dump_json()],
        env={**os.environ, "PYTHONHASHSEED": "7"},
    )
    assert json.loads(elsewhere.stdout) == again["vocabulary"]
    workload = Tagger(TaggerSettings())
    fit(workload, workload.dataset("train"))
    assert sorted(again["vocabulary"]) == sorted(workload.fitted["vocabulary"])
    forked = fork_checkpoint(folder, folder.checkpoints()[-1], "fork")
    assert load_recorded(forked, CONFIG).fitted == again
    (file,) = Path(folder.url.removeprefix("file://"), "data").glob(f"*-{FITTED_FILE}")
    file.chmod(0o644)
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(CheckpointError, match=FITTED_FILE):
        load_recorded(folder, CONFIG)


def test_a_served_workload_has_it_and_no_file(tmp_path: Path) -> None:
    workload = Tagger(TaggerSettings())
    train_set = load_split(workload, "train")
    served = load_without_data(CONFIG, fit(workload, train_set))
    columns = fetch(train_set, np.arange(4))  # type: ignore[arg-type]  # it is no stream
    ours, theirs = workload.prepare(columns, None), served.prepare(columns, None)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    with pytest.raises(WorkloadError, match="called where a model predicts"):
        served.files("vocabulary")
