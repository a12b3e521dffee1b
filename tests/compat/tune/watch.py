"""What runs while a search does."""

from __future__ import annotations

from typing import Any

import psutil
from ray import tune
from ray.util.placement_group import placement_group_table


class Watch(tune.Callback):
    """Counts trials, placement groups and Rays while the search runs."""

    def __init__(self) -> None:
        self.most_running = self.most_groups = 0
        self.heads: set[int] = set()
        self.steps: list[int] = []
        """What Tune was told, of a search of one trial: the log of a trial that begins anew is the
        one that Tune has stored last, and may lack results."""

    def on_step_end(self, iteration: int, trials: list[Any], **_: Any) -> None:
        running = sum(one.status == "RUNNING" and one.last_result != {} for one in trials)
        self.most_running = max(self.most_running, running)

    def on_trial_result(
        self, iteration: int, trials: Any, trial: Any, result: Any, **_: Any
    ) -> None:
        self.steps.append(result["evertrain/step"])
        groups = [one for one in placement_group_table().values() if one["state"] == "CREATED"]
        self.most_groups = max(self.most_groups, len(groups))
        for process in psutil.process_iter(["name"]):
            if process.info["name"] == "gcs_server" and psutil.Process() in process.parents():
                self.heads.add(process.pid)
