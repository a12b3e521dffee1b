"""The driver as a job of a cluster.

`python -m train_core.engine.driver.job_entry STORAGE RUN JOB CALL`.

The driver process gets its calls through pipes; this one reads and answers them in the run folder.
It goes on when its callers are gone: a training runs to its end, and the next caller of the run
attaches to it. It ends when its last caller closes it, or when none has lived for long.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from train_core.described_errors import describe, rebuild
from train_core.engine.data.recorded import with_defaults
from train_core.engine.driver.preflight import effective
from train_core.engine.driver.stages import DriverStages
from train_core.errors import ConfigError, RunBusyError, StorageError
from train_core.log_lines import set_up_logging
from train_core.policy.end_status import EndStatus
from train_core.requests import DriverRequest
from train_core.storage.coordination.heartbeat import HeartbeatObserver
from train_core.storage.coordination.mailbox import (
    THE_JOB,
    Answer,
    Call,
    Mailbox,
    caller_of,
    jobs_with_calls,
)
from train_core.storage.records.names import JobName
from train_core.storage.run_folder import RunFolder

LINGER_S = 60.0
"""How long a job waits that has no living caller and nothing to do."""
CUT_OFF_S = 600.0
"""How long a job tries to tell how it ended, when nothing else is left and the storage is away."""
STAGES = ("train", "evaluate", "infer", "publish")
_FIRST_CALL_WITHIN_S = 20.0
_PAUSE_S = 1.0
_TAKEN_WITHIN_S = 10.0
_ENDS_WITHIN_S = 2.0
_LAST_BEAT_S = 2.0
_LATE_S = 2.0
"""Heartbeats that are read so much later than they were due had to wait for the storage."""
_log = logging.getLogger("train_core.driver")


@dataclass
class Work:
    """A stage under way, and the calls that wait for it."""

    future: Future[Answer]
    names: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Closing:
    """A call that ends the job, unless one of the other callers moves again."""

    name: str
    arguments: dict[str, Any]
    others: dict[str, int]
    """How far each other's heartbeat was."""


class JobServer:
    """Carries out calls, each stage in a thread; this one reads, answers and prepares.

    A Ray that is joined from a thread would be left with it.
    """

    def __init__(self, mailbox: Mailbox, folder: RunFolder) -> None:
        self.last = ""
        """The name of the call that ended it: a close, or a request that was refused."""
        self._mailbox = mailbox
        self._timing = mailbox.timing
        self._folder = folder
        self._driver = DriverStages(mailbox.job)
        self._request: DriverRequest | None = None
        self._prepared: dict[str, Any] = {}
        self._seen: set[str] = set()
        self._callers: dict[str, HeartbeatObserver[int]] = {}
        self._observed_at = 0.0
        self._closing: Closing | None = None
        self._works: dict[str, Work] = {}
        self._unsent: dict[str, Answer] = {}
        self._unsent_since = math.inf
        self._pool = ThreadPoolExecutor(4, "stage")
        self._is_done = threading.Event()
        """Set when a stage has ended, whose answer is to be written."""

    def serve(self, first: str) -> bool:
        """Work until the end, beginning with the call of that name; whether the end was a good one.

        Raises ConfigError if that call is not there.
        """
        self._wait_for(first)
        heartbeat = self._mailbox.heartbeat_sender()
        heartbeat.start()
        try:
            return self._serve()
        finally:
            heartbeat.stop(_LAST_BEAT_S)

    def _serve(self) -> bool:
        idle_since = spoken_at = time.monotonic()
        while True:
            self._is_done.clear()
            found = self._new_calls()
            for name, call in found:
                self._take(name, call)
            end = self._closed()
            if self._send() or found:
                spoken_at = time.monotonic()
            if end is not None:
                return end
            if self._is_cut_off():
                _log.error("the outcome could not be stored for %g s: the job ends", CUT_OFF_S)
                self._done("close", {"status": EndStatus.FAILED})
                return False
            if found or self._works or self._unsent or self._living():
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since > LINGER_S:
                _log.warning("no caller for %g s: the job ends", LINGER_S)
                self._done("close", {"status": EndStatus.FAILED})
                return False
            self._is_done.wait(self._timing.pause_s(time.monotonic() - spoken_at))

    def _wait_for(self, first: str) -> None:
        deadline = time.monotonic() + _FIRST_CALL_WITHIN_S
        while first not in self._mailbox.call_names():
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"{self._folder.url} is another place on the cluster than on the caller's "
                    "machine: take a storage that both reach, such as s3://"
                )
            time.sleep(_PAUSE_S)

    def _new_calls(self) -> list[tuple[str, Call]]:
        found = []
        try:
            for name in self._mailbox.call_names():
                if name in self._seen:
                    continue
                try:
                    call = self._mailbox.read(name)
                except ValueError as error:
                    self._unsent[name] = _answer(error=describe("call", error))
                    call = None
                self._seen.add(name)
                if call:
                    found.append((name, call))
        except StorageError as error:
            _log.warning("calls cannot be read: %s", error)
        return found

    def _take(self, name: str, call: Call) -> None:
        """Begin what is asked."""
        self._callers.setdefault(caller_of(name), HeartbeatObserver(0, time.monotonic()))
        if call.stage == "close":
            del self._callers[caller_of(name)]
            self._listen()
            if self._closing is not None:
                # Who asked first did not know of this one.
                self._unsent[self._closing.name] = _answer(result=None)
            others = {other: caller.counter for other, caller in self._callers.items()}
            self._closing = Closing(name, call.arguments, others)
        elif call.stage == "prepare":
            answer = self._unsent[name] = self._prepare(call.arguments)
            if answer.error:
                # It will call no more.
                del self._callers[caller_of(name)]
            # Without a request that was accepted there is nothing to go on with.
            self.last = "" if self._request else name
        elif call.stage in STAGES:
            work = json.dumps([call.stage, call.arguments], sort_keys=True)
            if work not in self._works:
                future = self._pool.submit(self._done, call.stage, call.arguments)
                future.add_done_callback(lambda _: self._is_done.set())
                self._works[work] = Work(future)
            # Who asks for what is under way waits for that.
            self._works[work].names.append(name)
        else:
            error = ConfigError(f"there is no stage {call.stage!r}")
            self._unsent[name] = _answer(error=describe("call", error))

    def _closed(self) -> bool | None:
        """Whether the job ends well or badly; None if it goes on."""
        if self.last:
            return False
        if self._closing is None:
            return None
        name, others = self._closing.name, self._closing.others
        lives = self._living()
        # Also of one that came since then.
        if any(one.counter > others.get(other, 0) for other, one in self._callers.items()):
            # It is the other's job now.
            self._unsent[name] = _answer(result=None)
            self._closing = None
            return None
        if lives:
            return None
        self.last = name
        self._unsent[name] = self._done("close", self._closing.arguments)
        # What it ended has something to say, too.
        wait([work.future for work in self._works.values()], _ENDS_WITHIN_S)
        return self._closing.arguments.get("status") == EndStatus.FINISHED

    def _prepare(self, arguments: dict[str, Any]) -> Answer:
        """The first caller's request is the job's; who comes later must want the same."""
        try:
            asked = DriverRequest.model_validate(arguments.get("request"))
            if self._request is not None:
                self._folder.check_name(asked.flow_run)
                self._refuse_another(self._request, asked)
                return _answer(result=self._prepared | {"resumed": True})
            self._prepared = self._driver.prepare(asked.model_dump(mode="json"))
        # A workload's own sys.exit() would end the job without a word.
        except (Exception, SystemExit) as error:  # noqa: BLE001 (raised where it was asked for)
            return _answer(error=describe("prepare", error))
        self._request = asked
        if not self._prepared["unchanged_since"]:
            self._clear_others()
        return _answer(result=self._prepared)

    def _refuse_another(self, ours: DriverRequest, theirs: DriverRequest) -> None:
        """Raise RunBusyError if two requests want different things of the run."""
        both = (self._driver.config, effective(theirs))
        configs = [with_defaults(one).without_logins().model_dump() for one in both]
        # What the run decided as it began, and by which address the cluster is reached.
        free = {"ray_address", "runtime_env", "gpus_per_worker"}
        a, b = ({k: v for k, v in config.items() if k not in free} for config in configs)
        for name in ("experiment", "dry_run"):
            a[name], b[name] = getattr(ours, name), getattr(theirs, name)
        # By whichever way MLflow's address was given.
        a["pipeline"], b["pipeline"] = (
            one.pipeline.model_copy(update={"tracking_uri": None}) for one in (ours, theirs)
        )
        if differing := sorted(name for name in a if a[name] != b[name]):
            others = " and another ".join(differing)
            holder = f"job {self._mailbox.job}, which was asked for another {others}"
            raise RunBusyError(theirs.run, holder)

    def _clear_others(self) -> None:
        """Delete what was asked of earlier jobs: the lease is this one's."""
        if self._request is None or self._request.scores_only:
            return
        try:
            for job in jobs_with_calls(self._folder.store):
                if job != self._mailbox.job and JobName.parse(job):
                    Mailbox(self._folder.store, job).clear()
        except StorageError as error:
            _log.warning("mailboxes of earlier jobs could not be deleted: %s", error)

    def _living(self) -> bool:
        """Whether a caller lives."""
        now = time.monotonic()
        if now - self._observed_at > self._timing.mailbox_heartbeat_s:
            self._listen()
        limit_s = self._timing.mailbox_standstill_s
        return any(caller.still_s(now) < limit_s for caller in self._callers.values())

    def _listen(self) -> None:
        """Observe each caller's heartbeat."""
        observed_before, storage_unreachable = self._observed_at, False
        counters = {}
        for name in self._callers:
            try:
                counters[name] = self._mailbox.heartbeat_of(name)
            except (StorageError, ValueError) as error:
                storage_unreachable |= isinstance(error, StorageError)
                _log.debug("it is unknown whether caller %s lives: %s", name, error)
        now = self._observed_at = time.monotonic()
        # While a storage is away, heartbeats can neither be read nor written.
        due_s = self._timing.mailbox_heartbeat_s
        storage_unreachable |= now - observed_before > due_s + _LATE_S
        for name, caller in self._callers.items():
            caller.observe(counters.get(name, caller.counter), now)
            if storage_unreachable:
                caller.restart(now)

    def _done(self, stage: str, arguments: dict[str, Any]) -> Answer:
        try:
            return _answer(result=getattr(self._driver, stage)(**arguments))
        except (Exception, SystemExit) as error:  # noqa: BLE001 (raised where it was asked for)
            return _answer(error=describe(stage, error))

    def _send(self) -> bool:
        """Write the answers that there are; what cannot be written now is kept. Whether one was."""
        was_sent = False
        for work in [work for work, one in self._works.items() if one.future.done()]:
            done = self._works.pop(work)
            self._unsent |= dict.fromkeys(done.names, done.future.result())
        try:
            for name in list(self._unsent):
                self._mailbox.answer(name, self._unsent[name])
                del self._unsent[name]
                self._unsent_since, was_sent = math.inf, True
        except StorageError as error:
            # The log is where they can be read meanwhile.
            kept = "; ".join(
                str(rebuild(one.error)) if one.error else "it is done"
                for one in self._unsent.values()
            )
            _log.warning("answers cannot be stored, and are retried: %s (%s)", error, kept)
            self._unsent_since = min(self._unsent_since, time.monotonic())
        return was_sent

    def _is_cut_off(self) -> bool:
        """Whether all is done, but the answers could not be stored for long."""
        if self._works:
            # Their results must be delivered as well.
            self._unsent_since = math.inf
        return time.monotonic() - self._unsent_since > CUT_OFF_S


def _answer(**content: Any) -> Answer:
    """An answer as its reader will have it: lists for tuples."""
    return Answer.model_validate_json(json.dumps(content))


def main() -> None:
    """Entry point: the storage, the run's name, the job's, and that of the first call."""
    set_up_logging(sys.stdout)
    storage, run, job, first = sys.argv[1:]
    folder = RunFolder(storage, run)
    mailbox = Mailbox(folder.store, job, THE_JOB)
    server, is_good = JobServer(mailbox, folder), False
    try:
        is_good = server.serve(first)
        mailbox.clear(server.last, _TAKEN_WITHIN_S)
    except ConfigError as error:
        _log.error("%s", error)
    except BaseException:  # noqa: BLE001 (whatever it is, nobody else will say it)
        _log.exception("the job ends")
    finally:
        logging.shutdown()
        # Threads that train, or wait for a storage or a server, must not keep it.
        os._exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
