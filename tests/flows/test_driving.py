"""How the stages of a flow are driven where Prefect's server is away."""

from __future__ import annotations

import pytest
from prefect import Task

from evertrain_flows.driving import as_functions
from evertrain_tasks.retries import OPTIONS
from train_core.errors import EvertrainError, StorageError, UserCodeError


@pytest.mark.promise("who-tries-again")
@pytest.mark.parametrize(
    ("error", "num_tries"),
    [(StorageError("503"), 2), (UserCodeError("train", "KeyError: 'lr'"), 1)],
    ids=["infrastructure", "a bug"],
)
def test_a_task_that_fails_is_tried_as_often_as_prefect_would(
    error: EvertrainError, num_tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(OPTIONS, "retry_delay_seconds", 0)
    tries = 0

    def fails() -> None:
        nonlocal tries
        tries += 1
        raise error

    with pytest.raises(type(error)):
        as_functions(Task(fails))
    assert tries == num_tries
