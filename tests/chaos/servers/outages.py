"""Which server fails, when and how."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tests.chaos.servers.switch import Way
from tests.chaos.standing import AFTER_TRAINING, HELD, SELECTION

EMBEDDED, ELSEWHERE = "Prefect's server", "a Prefect server elsewhere"
MLFLOW, S3 = "MLflow's server", "the S3 server"
FOR_GOOD = math.inf


@dataclass(frozen=True)
class Outage:
    """Which server fails, at which stage, how, and for how long."""

    victim: str
    stage: str
    way: Way = Way.KILLED
    away_s: float = FOR_GOOD
    """FOR_GOOD: as long as the pipeline runs."""
    must_heal: bool = True
    """Whether the pipeline has to come to its end by itself: always."""

    @property
    def is_prefects(self) -> bool:
        return self.victim in (EMBEDDED, ELSEWHERE)

    @property
    def comes_back(self) -> bool:
        return self.away_s != FOR_GOOD

    def __str__(self) -> str:
        back = f", back after {self.away_s:g} s" if self.comes_back else ""
        return f"{self.way.value} of {self.victim}{back}"


_OF_PREFECT = ("before the first task", "mid-epoch", SELECTION, "report")
_ALL = ("before the first task", *HELD, *AFTER_TRAINING)
AWAY_S, BRIEFLY_S = 30.0, 5.0
OUTAGES = [
    *(
        Outage(EMBEDDED, stage, way)
        for way in (Way.KILLED, Way.FROZEN)
        for stage in ("before the flow run", *_OF_PREFECT, "artifacts")
    ),
    *(Outage(EMBEDDED, stage, Way.FROZEN, AWAY_S) for stage in ("mid-epoch", SELECTION)),
    *(Outage(ELSEWHERE, stage, way) for way in Way for stage in _OF_PREFECT),
    *(Outage(ELSEWHERE, stage, way, AWAY_S) for way in Way for stage in ("mid-epoch", SELECTION)),
    # The stages begin without it, and would have ended after AWAY_S.
    Outage(ELSEWHERE, "before the first task", away_s=BRIEFLY_S),
    # Back before the command gives up, which a server that has to start might not be.
    Outage(ELSEWHERE, "report", Way.ANSWERS_500, BRIEFLY_S),
    *(Outage(MLFLOW, stage, away_s=BRIEFLY_S) for stage in _ALL),
    *(Outage(MLFLOW, stage, Way.FROZEN, BRIEFLY_S) for stage in ("mid-epoch", "report")),
    *(Outage(S3, stage, away_s=BRIEFLY_S) for stage in _ALL),
    *(Outage(S3, stage, Way.FROZEN, BRIEFLY_S) for stage in ("mid-epoch", "report")),
]
"""Each server at each stage, and the ways to fail where they are another thing."""
