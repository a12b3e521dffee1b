"""A rank's reports, in their order: each one is settled with the other ranks.

A report has four messages. Each rank sends rank 0 its metrics and the names of its files; rank 0
announces which rank stores which files; each rank sends what it has stored; rank 0 commits, and
announces the end. All of it happens in one thread, so reports end in the order of their calls.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from typing import Any

from train_core.described_errors import describe, rebuild
from train_core.functions.reports.channel import ReportChannel
from train_core.functions.reports.committer import Committer
from train_core.functions.reports.plain_metrics import as_reported, plain, returned_json
from train_core.functions.reports.reported_files import assign_files
from train_core.functions.task import FunctionTask, OpenFolder, Report, Settled
from train_core.rank.distributed.pace import TAKEN
from train_core.rank.distributed.rendezvous import Membership
from train_core.rank.distributed.stop_requests import STOP, PostedByDriver, StopRequests
from train_core.storage.records.manifest import FileEntry, ReportedFolder
from train_core.storage.records.names import CHECKPOINTS, REPORTED_FOLDER, CheckpointName
from train_core.storage.run_writer import RunWriter

_MOST_NAMED = 3
_END = "function-end"
_log = logging.getLogger(__name__)


class Reporter:
    """The reports of one rank. `report`, `end` and `hold_newest` may be called from any thread."""

    def __init__(self, task: FunctionTask, rank: int, world_size: int) -> None:
        self.stop: str | None = None
        """Why the training is to end now; set before anybody who waits for the report goes on."""
        own = Membership(task.host, task.port, task.group, rank, world_size)
        # It tells the driver of a SIGTERM.
        self._requests = StopRequests(PostedByDriver(own, lambda: True), task.timing.sigterm_poll_s)
        self._requests.start()
        self._writer = RunWriter(task.folder, task.attempt)
        self._rank = rank
        self._follower_poll_s = task.timing.follower_poll_s
        self._thread = ThreadPoolExecutor(1, "reports")
        self._channel: Future[ReportChannel] = self._thread.submit(
            lambda: ReportChannel(own, task.timing)
        )
        self._committer: Future[Committer] | None = None
        """On rank 0 only."""
        if rank == 0:
            self._committer = self._thread.submit(lambda: Committer(task, self._channel.result()))
        self._last: Future[Settled] | None = None
        self._in_background: list[Future[Settled]] = []
        """Reports that nobody waits for, and that may fail yet or have failed."""
        self._newest = task.start
        self._held: dict[str, int] = {}
        """The checkpoints that the function was handed, each after how many reports."""
        self._handing_out = threading.Lock()
        self._has_warned = False

    def report(self, report: Report, *, in_background: bool = False) -> Future[Settled]:
        """Settle a report, after all that were made before it.

        An error of one `in_background` is raised by `wait_for_all` and `end`, too.
        """
        settled = self._last = self._thread.submit(self._settle, report)
        if in_background:
            left = [one for one in self._in_background if not one.done() or one.exception()]
            self._in_background = [*left, settled]
        if self._committer:
            # After the ranks were told: none of them waits for it.
            self._thread.submit(self._clean_up, report.number)
        return settled

    def wait_for_all(self, timeout_s: float | None = None) -> None:
        """Wait until all reports so far are settled, or until the time is over.

        Raises the first error of a report in the background, or that of the last report.
        """
        reports = [*self._in_background, *([self._last] if self._last else ())]
        wait(reports, timeout_s)
        for settled in reports:
            if settled.done():
                settled.result()

    def wait_until_idle(self) -> None:
        """Wait until nothing is left to do, also of what follows a report."""
        self._thread.submit(lambda: None).result()

    def hold_newest(self, number: int) -> str | None:
        """The newest checkpoint for a function that has made `number` reports, if there is one.

        It is not deleted before a report that the function makes later has become a checkpoint.
        """
        with self._handing_out:
            if self._newest is not None:
                self._held[self._newest] = number
            return self._newest

    def end(self, number: int, returned: Any = None) -> None:
        """Commit the end of the function, once all ranks have come to it.

        What it `returned` is kept of rank 0, as by Ray, if it is JSON; else that is warned about.
        Raises FencedError, StorageError, and as `wait_for_all`.
        """
        self.wait_for_all()
        self._thread.submit(self._end, number, returned).result()

    def close(self) -> None:
        """End the threads; a report that has not begun is left."""
        self._requests.close()
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._committer:
            # At once if it is there already; else as soon as it is.
            self._committer.add_done_callback(_close_made)

    def _settle(self, report: Report) -> Settled:
        settled = self._exchange(report)
        with self._handing_out:
            self._newest = settled.checkpoint or self._newest
        self.stop = settled.stop or self.stop
        return settled

    def _exchange(self, report: Report) -> Settled:
        channel, topic = self._channel.result(), f"report-{report.number}"
        with ExitStack() as stack:
            mine = _Mine(self._holds(report.number))
            with described(mine.message):
                mine.open(report, stack)
            channel.send(topic, mine.message)
            if self._committer:
                channel.announce(f"{topic}/plan", self._plan(report.number, channel))
            plan = _checked(channel.wait_for(f"{topic}/plan", after=topic))
            if plan["assigned"] is None:
                return Settled(None, plan["stop"])
            stored: dict[str, Any] = {}
            with described(stored):
                names = plan["assigned"][self._rank]
                stored["files"] = self._store(report.number, mine.folder, names)
            channel.send(f"{topic}/stored", stored)
            if self._committer:
                channel.announce(f"{topic}/end", self._commit(report.number, plan, channel))
            end = _checked(channel.wait_for(f"{topic}/end"))
        if report.source:
            report.source.clean_up()
        return Settled(end["checkpoint"], end["stop"])

    def _holds(self, number: int) -> list[str]:
        """The checkpoints that the function was handed after it had made this report."""
        with self._handing_out:
            self._held = {name: at for name, at in self._held.items() if at >= number}
            return sorted(self._held)

    def _plan(self, number: int, channel: ReportChannel) -> dict[str, Any]:
        """Note the metrics of all ranks, and decide which of them stores which files."""
        self._wait_for_follower(number - 1, channel)
        plan: dict[str, Any] = {"assigned": None, "stop": _requested_stop(channel)}
        with described(plan):
            messages = channel.collect(f"report-{number}", unless=_END)
            for message in messages:
                _checked(message)
            held = {name for message in messages for name in message["held"]}
            files = [message["files"] for message in messages]
            has_folder = any(one is not None for one in files)
            metrics = [message["metrics"] for message in messages]
            self._commits.add(number, metrics, held, has_folder=has_folder)
            if has_folder:
                places = [message["place"] for message in messages]
                plan["assigned"], collisions = assign_files(files, places)
                self._warn_of(collisions)
            requested = (message["validation"] for message in messages)
            plan["reported"] = {
                "name": next((one["name"] for one in messages if one["name"]), ""),
                "world_size": len(messages),
                "metrics": as_reported(messages[0]["metrics"]),
                "requested_validation": next(filter(None, requested), None),
            }
        return plan

    def _wait_for_follower(self, number: int, channel: ReportChannel) -> None:
        """Wait until who follows the training, if anybody does, has the report of that number."""
        while (taken := channel.read(TAKEN)) is not None and taken < number:
            if _requested_stop(channel) is not None:
                return
            time.sleep(self._follower_poll_s)

    def _store(
        self, number: int, folder: OpenFolder | None, names: Sequence[str]
    ) -> list[dict[str, Any]]:
        """Store the files that are this rank's to store."""
        key = f"{CHECKPOINTS}/{CheckpointName(number, self._writer.attempt)}"
        entries = []
        for name in names:
            assert folder is not None, "it has files"
            inside = f"{REPORTED_FOLDER}/{name}"
            entry = folder.store(self._writer, name, f"{key}/{inside}")
            entries.append(entry.model_copy(update={"name": inside}).model_dump())
        return entries

    def _commit(self, number: int, plan: dict[str, Any], channel: ReportChannel) -> dict[str, Any]:
        """Commit what the ranks have stored; the answer to all of them."""
        messages = channel.collect(f"report-{number}/stored")
        # Also one that came while the ranks were storing.
        end: dict[str, Any] = {"stop": _requested_stop(channel)}
        with described(end):
            files = [
                FileEntry.model_validate(file)
                for message in messages
                for file in _checked(message)["files"]
            ]
            stops = end["stop"] is not None
            reported = ReportedFolder.model_validate(plan["reported"])
            committed = self._commits.commit(number, reported, files, stops=stops)
            end["checkpoint"] = str(committed.name)
        return end

    def _clean_up(self, number: int) -> None:
        """Delete what the report has made superfluous."""
        channel, before = self._channel.result(), f"report-{number - 1}"
        # All ranks have read it: they have made the report after it.
        for topic in (f"{before}/plan", f"{before}/end"):
            channel.forget(topic)
        self._commits.clean_up()

    def _end(self, number: int, returned: Any) -> None:
        channel = self._channel.result()
        channel.send(_END, {})
        if self._committer:
            end: dict[str, Any] = {}
            with described(end):
                channel.collect(_END, unless=f"report-{number}")
                self._commits.end(number, _kept_of(returned))
            channel.announce(f"{_END}/committed", end)
        _checked(channel.wait_for(f"{_END}/committed", after=_END))

    def _warn_of(self, collisions: Collection[str]) -> None:
        """Warn once: each report is likely to have the same names."""
        if collisions and not self._has_warned:
            self._has_warned = True
            named = ", ".join(sorted(collisions)[:_MOST_NAMED])
            _log.warning(
                "several ranks reported files of one name (%s): those of the first rank are stored",
                named,
            )

    @property
    def _commits(self) -> Committer:
        assert self._committer is not None, "rank 0 has one"
        return self._committer.result()


class _Mine:
    """This rank's part of a report: its folder, and the message about it."""

    def __init__(self, held: list[str]) -> None:
        self.folder: OpenFolder | None = None
        self.message: dict[str, Any] = {"held": held}

    def open(self, report: Report, stack: ExitStack) -> None:
        files, place = None, ""
        if report.source is not None:
            self.folder = stack.enter_context(report.source.opened())
            files, place = self.folder.names(), report.source.place()
        self.message |= {
            "metrics": plain(report.metrics),
            "name": report.name,
            "validation": report.validation,
            "files": files,
            "place": place,
        }


def _requested_stop(channel: ReportChannel) -> str | None:
    """Why the training is to end after this report; None: it goes on."""
    request = channel.read(STOP)
    return request["reason"] if request else None


@contextmanager
def described(message: dict[str, Any]) -> Iterator[None]:
    """Put an error of the block into the message: every rank shall raise it, so none waits."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 (whatever it is, the other ranks wait for this one)
        message["error"] = describe("train", error)


def _kept_of(returned: Any) -> Any:
    """What is kept of what the function returned; None, and a warning, if it is no JSON."""
    try:
        return returned_json(returned)
    except Exception as error:  # noqa: BLE001 (of the value's own code: the training has ended)
        _log.warning(
            "what the training function returned is not kept: it has %s, and JSON alone is kept "
            "(numbers, texts, lists, dicts)",
            error,
        )
        return None


def _close_made(committer: Future[Committer]) -> None:
    if not committer.cancelled() and not committer.exception():
        committer.result().close()


def _checked(message: dict[str, Any]) -> dict[str, Any]:
    """The message, unless it has an error, which is raised."""
    if error := message.get("error"):
        raise rebuild(error)
    return message
