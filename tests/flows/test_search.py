"""`retrain_best`: which run is the best one of a search that is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from evertrain_flows.search import _best_of, retrain_best
from tests.rank import alone
from train_core import TrainConfig, list_runs
from train_core.errors import ConfigError
from train_core.requests import SearchTrial
from train_core.storage.run_folder import RunFolder


@pytest.mark.promise("tune-best")
def test_the_best_run_of_a_search_is_that_with_the_best_monitored_metric(tmp_path: Path) -> None:
    storage = str(tmp_path)
    asked = {"workload": "tests.rank.tiny:Tiny", "batch_size": 32, "eval_batch_size": 16}
    lowest = {"monitor": "validation/loss", "monitor_order": "min"}
    for epochs in (1, 3, 2):
        folder = RunFolder(storage, f"lr-{epochs}")
        trial = SearchTrial(search="lr", trial=str(epochs))
        config = TrainConfig(**asked, **lowest, epochs=epochs)
        alone.create(folder, config, search=trial)
        alone.run(folder, epochs=epochs, **lowest)
    values = {one.run: one.best for one in list_runs(storage)}
    assert _best_of("lr", storage).name == min(values, key=lambda run: values[run] or 0)
    with pytest.raises(ConfigError, match="there is no search 'rates'"):
        retrain_best("rates", storage=storage)
    with pytest.raises(ConfigError, match="metric and mode are for results of Tune's"):
        retrain_best("lr", storage=storage, metric="validation/accuracy")
    begun = RunFolder(storage, "other-1")
    trial = SearchTrial(search="other", trial="1")
    alone.create(begun, TrainConfig(**asked, **lowest), search=trial)
    with pytest.raises(ConfigError, match="no trial of search 'other' has a value"):
        retrain_best("other", storage=storage)
    with pytest.raises(ConfigError, match="infr_input: Extra inputs are not permitted"):
        retrain_best("lr", storage=storage, infr_input="new")
