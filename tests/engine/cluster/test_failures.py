"""Of all failures of an attempt, the one that the others followed from."""

from __future__ import annotations

import pytest
from ray.exceptions import OutOfMemoryError, RayActorError

from train_core.engine.cluster.failures import SilentWorkerError, first_cause
from train_core.errors import ResourceError, UserCodeError

BROKEN = ConnectionError("rank 0: RuntimeError: gloo/transport/tcp: Connection closed by peer")
BUG = UserCodeError("train", "rank 1: KeyError: 'x'")
DEATH = RayActorError(error_msg="The actor died.\n\tpid: 7\nWorker exit type: SYSTEM_ERROR")
DIED = "rank 1 died: RayActorError: The actor died. Worker exit type: SYSTEM_ERROR"
MEMORY = OutOfMemoryError("1 worker(s) were killed\nand forty lines more")
SILENCE = SilentWorkerError("no answer for 31 s")


@pytest.mark.parametrize(
    ("failures", "kind", "text"),
    [
        ({"rank 0": BROKEN, "rank 1": BUG}, UserCodeError, "rank 1: KeyError"),
        (
            {"rank 0": BROKEN, "rank 1": DEATH},
            ConnectionError,
            DIED,
        ),
        # A survivor's error may be of any kind, also one that looks like a bug.
        ({"rank 0": BUG, "rank 1": DEATH}, ConnectionError, "rank 1 died"),
        ({"rank 0": BUG, "rank 1": MEMORY}, ResourceError, "rank 1 was ended by Ray's memory"),
        ({"rank 0": DEATH, "rank 1": MEMORY}, ResourceError, "rank 1 was ended by Ray's memory"),
        ({"rank 0": BROKEN, "rank 1": SILENCE}, ConnectionError, "rank 1 died: SilentWorker"),
        ({"rank 0": BUG, "rank 1": BUG}, UserCodeError, "KeyError"),
        ({"rank 0": BROKEN}, ConnectionError, "closed by peer"),
    ],
)
def test_the_cause_is_found(failures: dict[str, Exception], kind: type, text: str) -> None:
    cause = first_cause(failures, "take less")
    assert type(cause) is kind
    assert text in str(cause)
    assert "\n" not in str(cause)
