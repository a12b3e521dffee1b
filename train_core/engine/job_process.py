"""The driver as a job of a cluster: `python -m train_core.engine.job_process STORAGE RUN JOB`.

What the driver process is told through its pipes, this one reads and answers in the run folder. It
goes on when whoever called it is gone: a training that runs is trained to its end, and whoever
wants the run next attaches to it. It ends when it is told to, or when nobody has called for long.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from train_core.driver import DriverRequest
from train_core.engine.driver_process import describe
from train_core.engine.driver_stages import DriverStages
from train_core.errors import RunBusyError, StorageError
from train_core.storage.calls import Answer, Call, Calls
from train_core.storage.run_folder import RunFolder

LINGER_S = 60.0
"""How long a job that has nothing to do waits for the next call."""
_FIRST_PAUSE_S, _PAUSE_S = 0.1, 1.0
_TAKEN_WITHIN_S = 10.0
_log = logging.getLogger("train_core.driver")


class JobServer:
    """Carries out calls; the first has to be `prepare`, which this thread does itself.

    A Ray that is joined from a thread would be left with it.
    """

    def __init__(self, calls: Calls, job: str) -> None:
        self._calls = calls
        self._job = job
        self._driver = DriverStages()
        self.last = ""
        """The name of the call that ended it."""
        self._request: DriverRequest | None = None
        self._prepared: dict[str, Any] = {}
        self._seen: set[str] = set()
        self._under_way: dict[str, list[str]] = {}
        """The names of the calls that wait for the same work, by what is to be done."""
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(4, "stage")

    def serve(self) -> bool:
        """Work until the end; whether it was a good one."""
        idle_since, pause_s = time.monotonic(), _FIRST_PAUSE_S
        while True:
            found = self._new_calls()
            for name, call in found:
                if call.stage == "close":
                    self.last = name
                    self._answer([name], self._done("close", call.arguments))
                    return call.arguments.get("status") == "FINISHED"
                if call.stage == "prepare":
                    answer = self._prepare(call.arguments["request"])
                    self._answer([name], answer)
                    if self._request is None:
                        self.last = name
                        return False
                else:
                    self._begin(name, call)
            if found or self._under_way:
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since > LINGER_S:
                _log.warning("nobody has called for %g s: the job ends", LINGER_S)
                self._done("close", {"status": "FAILED"})
                return False
            pause_s = _FIRST_PAUSE_S if found else min(2 * pause_s, _PAUSE_S)
            time.sleep(pause_s)

    def _new_calls(self) -> list[tuple[str, Call]]:
        try:
            names = [name for name in self._calls.asked() if name not in self._seen]
            found = [(name, self._calls.read(name)) for name in names]
        except StorageError as error:
            _log.warning("calls cannot be read: %s", error)
            return []
        self._seen.update(names)
        return [(name, call) for name, call in found if call]

    def _prepare(self, request: Any) -> Answer:
        """The first caller's request is the job's; who comes later must want the same."""
        asked = DriverRequest.model_validate(request)
        if self._request is not None:
            if differing := _differing(self._request, asked):
                holder = f"job {self._job}, which has another {' and another '.join(differing)}"
                return _answer(error=describe("prepare", RunBusyError(asked.run, holder)))
            return _answer(result=self._prepared | {"resumed": True})
        try:
            self._prepared = self._driver.prepare(request)
            self._driver.start_ray()
        except Exception as error:  # noqa: BLE001 (raised where it was asked for)
            return _answer(error=describe("prepare", error))
        self._request = asked
        return _answer(result=self._prepared)

    def _begin(self, name: str, call: Call) -> None:
        """Do it in a thread; who asks for what is under way waits for that."""
        work = json.dumps([call.stage, call.arguments], sort_keys=True)

        def do() -> None:
            answer = self._done(call.stage, call.arguments)
            with self._lock:
                waiting = self._under_way.pop(work)
            self._answer(waiting, answer)

        with self._lock:
            waiting = self._under_way.setdefault(work, [])
            waiting.append(name)
        if waiting == [name]:
            self._pool.submit(do)

    def _done(self, stage: str, arguments: dict[str, Any]) -> Answer:
        try:
            return _answer(result=getattr(self._driver, stage)(**arguments))
        except Exception as error:  # noqa: BLE001 (raised where it was asked for)
            return _answer(error=describe(stage, error))

    def _answer(self, names: list[str], answer: Answer) -> None:
        for name in names:
            try:
                self._calls.answer(name, answer)
            except StorageError as error:
                _log.warning("an answer cannot be written: %s", error)


def _answer(**content: Any) -> Answer:
    """An answer as its reader will have it: lists for tuples."""
    return Answer.model_validate_json(json.dumps(content))


def _differing(ours: DriverRequest, theirs: DriverRequest) -> list[str]:
    """What two requests want differently."""
    a, b = ours.model_dump(mode="json"), theirs.model_dump(mode="json")
    a, b = a | a.pop("config"), b | b.pop("config")
    # The same cluster has several addresses, and its job as many.
    same = {"ray_address", "job_url"}
    return sorted(name for name in a.keys() | b.keys() if name not in same and a[name] != b[name])


def main() -> None:
    """Entry point: the storage, the run's name and the job's."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    storage, run, job = sys.argv[1:]
    calls = Calls(RunFolder(storage, run).store, job)
    server = JobServer(calls, job)
    is_good = False
    try:
        is_good = server.serve()
        calls.clear(server.last, _TAKEN_WITHIN_S)
    except BaseException:
        _log.exception("the job ends")
        raise
    finally:
        logging.shutdown()
        # Threads that train, or wait for a storage or a server, must not keep it.
        os._exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
