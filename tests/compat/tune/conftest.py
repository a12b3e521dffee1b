"""A Ray of this module, with two CPUs, on which Tune searches."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from train_core import list_runs
from train_core.storage.run_folder import RunFolder

if TYPE_CHECKING:
    from train_core.tune.trial import Trial


@pytest.fixture(scope="module")
def tunes_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Ray as a program starts it that searches with Tune."""
    import ray

    before = signal.getsignal(signal.SIGINT)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()
    # Tune hears SIGINT as it searches, and goes on to do so.
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def search(tunes_ray: None, tmp_path: Path) -> Callable[..., Any]:
    """Searches with a trainable of Searched, whose runs are in `tmp_path`/runs; its results."""
    from ray import tune

    from train_core.tune import trainable

    def fit(
        space: dict[str, Any],
        *,
        name: str = "search",
        run_config: dict[str, Any] | None = None,
        tune_config: dict[str, Any] | None = None,
        kind: Callable[[type[Trial]], type[Trial]] = lambda made: made,
        **parameters: Any,
    ) -> Any:
        asked = {
            "workload": "tests.compat.tune.workloads:Searched",
            "batch_size": 4,
            "epochs": 3,
            "accept": ["everything"],
            "storage": str(tmp_path / "runs"),
            **parameters,
        }
        if "train_fn" in asked:
            for one in ("workload", "batch_size", "epochs", "accept"):
                del asked[one]
        tuner = tune.Tuner(
            kind(trainable(**asked)),
            param_space=space,
            tune_config=tune.TuneConfig(**(tune_config or {})),
            run_config=tune.RunConfig(
                name=name, storage_path=str(tmp_path / "tune"), verbose=0, **(run_config or {})
            ),
        )
        return tuner.fit()

    return fit


@pytest.fixture
def runs(tmp_path: Path) -> Callable[[], dict[str, RunFolder]]:
    """The runs of the search, by their names."""

    def found() -> dict[str, RunFolder]:
        storage = str(tmp_path / "runs")
        return {one.run: RunFolder(storage, one.run) for one in list_runs(storage)}

    return found
