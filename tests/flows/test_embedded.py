from __future__ import annotations

import subprocess
import sys

REFUSED = """
import atexit
import sys
from flows import embedded

embedded.configure(verbose=False)
with embedded.warming_up() as warming:
    atexit.register(lambda: print(warming.is_alive()))
    sys.exit(2)
"""


def test_a_command_that_is_refused_does_not_leave_in_the_middle_of_an_import(
    environment: dict[str, str],
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", REFUSED],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "False\n")
