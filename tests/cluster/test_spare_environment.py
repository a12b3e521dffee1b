"""A spare that has become a worker has what the first worker had: each row has a Ray of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
OMP = "OMP_NUM_THREADS"


@pytest.mark.parametrize(
    ("variables", "of_runtime_env", "cpus", "threads"),
    [
        pytest.param({}, {}, 2, "2", id="unset"),
        pytest.param({}, {}, 0.5, "1", id="a part of a CPU"),
        pytest.param({OMP: "3", "MKL_NUM_THREADS": "2"}, {}, 1, "3", id="environment"),
        pytest.param({OMP: "1"}, {}, 2, "1", id="one thread"),
        pytest.param({OMP: "4"}, {OMP: "3"}, 2, "3", id="runtime_env"),
    ],
)
def test_a_spare_has_the_environment_and_the_threads_of_a_worker(
    variables: dict[str, str], of_runtime_env: dict[str, str], cpus: float, threads: str
) -> None:
    first, second = with_a_ray_of_its_own(variables, of_runtime_env, cpus)
    assert first[0][OMP] == threads
    assert second == first


def with_a_ray_of_its_own(*row: Any) -> Any:
    """What `main` prints, in a process with these variables only."""
    kept = ("PATH", "HOME", "LANG", "PYTHONPATH", "TMPDIR", "VIRTUAL_ENV")
    variables = {name: os.environ[name] for name in kept if name in os.environ} | row[0]
    program = [sys.executable, "-m", __name__, *map(json.dumps, row[1:])]
    shown = subprocess.check_output(program, env=variables, text=True)
    return json.loads(shown.splitlines()[-1])


def main(of_runtime_env: dict[str, str], cpus: float) -> None:
    """Print what a worker has, and what the spare has that takes its place."""
    import ray

    from train_core import TrainConfig
    from train_core.cluster.runtime import POOL_SETTINGS, start_ray
    from train_core.cluster.slots import Layout, Slots

    here = "tests.cluster.functions"
    asked = {"env_vars": of_runtime_env} if of_runtime_env else {}
    config = TrainConfig(cpus_per_worker=cpus, gpus_per_worker=0, runtime_env=asked)
    start_ray(config, POOL_SETTINGS)
    slots = Slots.start(Layout.of(config), ["torch"])
    found = []
    for _ in range(2):
        run = slots.workers[0].run.remote
        variables, threads = ray.get(run(f"{here}:surroundings", ()))
        found.append(({k: v for k, v in variables.items() if not _is_rays(k)}, threads))
        if len(found) == 1:
            slots.start_spare(0, f"{here}:pid", ())
            ray.wait([slots.spares[0]._prepared])
            spare = ray.get(slots.spares[0].actor.run.remote(f"{here}:pid", ()))
            slots.replace(0)
    assert ray.get(run(f"{here}:pid", ())) == spare
    slots.end()
    sys.stdout.write(json.dumps(found))


def _is_rays(variable: str) -> bool:
    """Whether Ray says by it which of its processes it is, or started it by a shell."""
    return variable.startswith(("RAY_", "__RAY")) or variable in ("PWD", "SHLVL", "_")


if __name__ == "__main__":
    main(*map(json.loads, sys.argv[1:]))
