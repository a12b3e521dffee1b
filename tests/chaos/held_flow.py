"""The command line, whose flow stands still as it selects if `EVERTRAIN_TEST_HOLD` says `select@0`.

No workload is called there, which could do it.
"""

from __future__ import annotations

import os
from typing import Any

from flows.cli import command
from tests.chaos.standing import HOLD, stand_still


def hold_selection() -> None:
    """Have the task stand still before it ranks."""
    import tasks.select

    own = tasks.select.ranked

    def ranked(*arguments: Any) -> Any:
        stand_still()
        return own(*arguments)

    tasks.select.ranked = ranked


if __name__ == "__main__":
    if os.environ.get(HOLD) == "select@0":
        # Prefect is imported with it, which the command line itself does later.
        hold_selection()
    command()
