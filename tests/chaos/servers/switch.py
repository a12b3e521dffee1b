"""A proxy before a server, which can be switched over to answering 500 or 401, or never."""

from __future__ import annotations

import math
from enum import Enum

from tests.storage.doubles.fault_proxy import Fault, FaultProxy, Kind


class Mode(Enum):
    """What the proxy does with what it gets."""

    PASS = "pass"
    ANSWERS_500 = "500 Internal Server Error"
    ANSWERS_401 = "401 Unauthorized"
    SILENT = "silent"
    """It accepts connections, and no byte comes from it, on older connections either."""


class Switch(FaultProxy):
    """The proxy; its schedule's hits are the requests that did not reach the server."""

    def turn(self, mode: Mode) -> None:
        """Switch over; connections that are open end, if they are not just to fall silent."""
        self.schedule.clear()
        self.silences = mode is Mode.SILENT
        if mode in (Mode.ANSWERS_500, Mode.ANSWERS_401):
            self.schedule.add(Fault(Kind.REFUSE, times=math.inf, status=mode.value, body=b"{}"))
        if not self.silences:
            self.cut_off()
