"""Ray's own settings, which it reads as it is imported."""

from __future__ import annotations

import os
import subprocess
import sys


def test_nothing_imports_ray_before_its_settings_are_in_the_environment() -> None:
    code = (
        "import sys, train_core.engine.driver.process_entry; assert 'ray' not in sys.modules\n"
        "from train_core import TrainConfig\n"
        "from train_core.engine.cluster.runtime import load_ray\n"
        "load_ray(TrainConfig())\n"
        "from ray._private.ray_constants import RAY_DEDUP_LOGS; assert not RAY_DEDUP_LOGS"
    )
    # Without what a Ray of this process has set.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    subprocess.run([sys.executable, "-c", code], check=True, env=clean)
