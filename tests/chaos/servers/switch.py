"""A proxy before a server, which can be switched over to answering 500 or 401, or never."""

from __future__ import annotations

import math
from enum import Enum

from tests.storage.doubles.fault_proxy import Fault, FaultProxy, Kind


class Way(Enum):
    """How a server fails."""

    KILLED = "SIGKILL"
    FROZEN = "SIGSTOP"
    ANSWERS_500 = "500"
    ANSWERS_401 = "401"
    SILENT = "silence"
    """It accepts connections, and no byte comes from it, on older connections either."""


class Switch(FaultProxy):
    """The proxy; its schedule's hits are the requests that did not reach the server."""

    def turn(self, way: Way | None) -> None:
        """Switch over to a way to fail, or to none.

        Connections that are open end, if they are not just to fall silent.
        """
        self.schedule.clear()
        self.silences = way is Way.SILENT
        if way in (Way.ANSWERS_500, Way.ANSWERS_401):
            refused = f"{way.value} of the switch"
            self.schedule.add(Fault(Kind.REFUSE, times=math.inf, status=refused, body=b"{}"))
        if not self.silences:
            self.cut_off()
