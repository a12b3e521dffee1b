"""Ray's own settings, which it reads as it is imported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

POOL = "from train_core.cluster.runtime import POOL_SETTINGS as settings\n"
OTHER = "settings = RaySettings()\n"


def run_anew(code: str) -> str:
    """What a program prints that has nothing of what a Ray of this process has set."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    code = (
        "import os, sys, train_core.driver.process_entry; assert 'ray' not in sys.modules\n"
        "from train_core import TrainConfig\n"
        "from train_core.cluster.runtime import RaySettings, load_ray\n"
    ) + code
    return subprocess.check_output([sys.executable, "-c", code], env=clean, text=True)


def test_nothing_imports_ray_before_its_settings_are_in_the_environment() -> None:
    run_anew(
        f"{POOL}load_ray(TrainConfig(), settings)\n"
        "from ray._private.ray_constants import RAY_DEDUP_LOGS; assert not RAY_DEDUP_LOGS"
    )


@pytest.mark.slow
def test_what_the_pool_wants_of_ray_is_for_no_other_launcher() -> None:
    shown = "load_ray(TrainConfig(), settings)\nprint(*(k for k in os.environ if k[:4] == 'RAY_'))"
    of_pool, of_other = (set(run_anew(settings + shown).split()) for settings in (POOL, OTHER))
    assert of_pool - of_other == {"RAY_worker_niceness", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"}
    assert {"RAY_DEDUP_LOGS", "RAY_USAGE_STATS_ENABLED"} <= of_other


@pytest.mark.slow
def test_what_somebody_has_set_for_ray_stays() -> None:
    shown = "load_ray(TrainConfig(), settings)\nprint(os.environ['RAY_worker_niceness'])"
    assert run_anew(f"os.environ['RAY_worker_niceness'] = '7'\n{POOL}{shown}") == "7\n"
