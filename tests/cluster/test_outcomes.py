"""Of all failures of a call, the one that the others followed from."""

from __future__ import annotations

import pytest
from ray.exceptions import OutOfMemoryError, RayActorError, RayTaskError

from train_core.cluster.outcomes import (
    Died,
    Outcome,
    Raised,
    Returned,
    Running,
    SilentWorkerError,
    failure_of,
    is_survivor,
    kept_step,
    values,
)
from train_core.errors import AttemptLostError, ResourceError, UserCodeError

BROKEN = Raised(ConnectionError("rank 0: RuntimeError: gloo: Connection closed by peer"))
LEFT = Raised(AttemptLostError("rank 0: another rank ended"))
BUG = Raised(UserCodeError("train", "rank 1: KeyError: 'x'"))
CAUSES = " Some common causes include: (1) the process was killed by the OOM killer, (2) others."
DEATH = Died(
    RayActorError(error_msg=f"The actor died.\n\tpid: 7\nWorker exit type: SYSTEM_ERROR{CAUSES}")
)
DIED = "rank 1 died: RayActorError: The actor died. Worker exit type: SYSTEM_ERROR"
MEMORY = Died(OutOfMemoryError("1 worker(s) were killed\nand forty lines more"))
SILENCE = Died(SilentWorkerError("no answer for 31 s"))


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
        # Who lost a rank says less than who lost a connection of its own.
        ({"rank 0": LEFT, "rank 1": BROKEN}, ConnectionError, "closed by peer"),
        ({"rank 0": LEFT, "rank 1": BUG}, UserCodeError, "KeyError"),
        ({"rank 0": LEFT, "rank 1": DEATH}, ConnectionError, "rank 1 died"),
        ({"rank 0": LEFT, "rank 1": MEMORY}, ResourceError, "rank 1 was ended by Ray's memory"),
        ({"rank 0": LEFT}, ConnectionError, "rank 0: another rank ended"),
    ],
)
def test_the_cause_is_found(failures: dict[str, Outcome], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as cause:
        values({"rank 2": Returned(2), **failures, "rank 3": Running()}, "take less")
    assert type(cause.value) is kind
    assert text in str(cause.value)
    assert "\n" not in str(cause.value)


def test_who_only_lost_another_rank_survives() -> None:
    assert [is_survivor(one) for one in (LEFT, Returned(None))] == [True, True]
    others = (BROKEN, BUG, DEATH, SILENCE, Running())
    assert not any(is_survivor(one) for one in others)


def test_the_survivor_that_has_come_furthest_counts() -> None:
    further = Raised(AttemptLostError("rank 1: another rank ended", 7))
    assert kept_step([LEFT, further, DEATH, Returned(None)]) == 7
    assert kept_step([DEATH, BROKEN]) == 0


def test_without_a_failure_the_values_come_in_order() -> None:
    assert values({"rank 0": Returned("a"), "rank 1": Returned(None)}, "") == ["a", None]


def test_what_the_function_raised_is_no_death() -> None:
    bug = KeyError("x")
    assert failure_of(RayTaskError("f", "traceback", bug)) == Raised(bug)
    assert isinstance(failure_of(RayActorError(error_msg="it died")), Died)
