"""The servers of tests and benchmarks are handed out when they answer, and not before."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from benchmarks import services

# Ray's processes end a moment after they are killed.
pytestmark = pytest.mark.leaves


@pytest.mark.slow
def test_a_cluster_that_says_it_runs_and_takes_no_jobs_is_not_handed_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(services, "ANSWERS_WITHIN_S", 30)
    # Ray's sockets need a short path.
    with TemporaryDirectory(prefix="ray-") as folder:
        cluster = services.ray_cluster(Path(folder), "--num-cpus=1", "--include-dashboard=false")
        with pytest.raises(RuntimeError, match="it does not answer"), cluster:
            pytest.fail("it is handed out")
