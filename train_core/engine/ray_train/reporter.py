"""A rank's reports, in their order: each one is settled with the other ranks.

A report has four messages. Each rank sends rank 0 its metrics and the names of its files; rank 0
announces which rank stores which files; each rank sends what it has stored; rank 0 commits, and
announces the end. All of it happens in one thread, so reports end in the order of their calls.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from train_core.described_errors import describe, rebuild
from train_core.engine.distributed.rendezvous import Membership
from train_core.engine.distributed.stop_source import STOP
from train_core.engine.ray_train.channel import ReportChannel
from train_core.engine.ray_train.committer import Committer
from train_core.engine.ray_train.folder import assign_files, files_in, map_file
from train_core.engine.ray_train.plain import plain
from train_core.engine.ray_train.task import FunctionTask, Report, Settled
from train_core.storage.records.manifest import FileEntry, ReportedFolder
from train_core.storage.records.names import CHECKPOINTS, REPORTED_FOLDER, CheckpointName
from train_core.storage.run_writer import RunWriter

_MOST_NAMED = 3
_END = "function-end"
_log = logging.getLogger(__name__)


class Reporter:
    """The reports of one rank. `report` and `end` may be called from any thread."""

    def __init__(
        self,
        task: FunctionTask,
        rank: int,
        world_size: int,
        on_settled: Callable[[Settled], None] = lambda _: None,
    ) -> None:
        self._on_settled = on_settled
        """Called for each report, in their order, before anybody who waits for it goes on."""
        own = Membership(task.host, task.port, task.group, rank, world_size)
        self._writer = RunWriter(task.folder, task.attempt)
        self._rank = rank
        self._thread = ThreadPoolExecutor(1, "reports")
        self._channel: Future[ReportChannel] = self._thread.submit(ReportChannel, own)
        self._committer: Future[Committer] | None = None
        """On rank 0 only."""
        if rank == 0:
            self._committer = self._thread.submit(Committer, task)
        self._last: Future[Settled] | None = None
        self._has_warned = False

    def report(self, report: Report) -> Future[Settled]:
        """Settle a report, after all that were made before it."""
        self._last = self._thread.submit(self._settle, report)
        if self._committer:
            # After the ranks were told: none of them waits for it.
            self._thread.submit(self._clean_up, report.number)
        return self._last

    def wait_for_all(self, timeout_s: float | None = None) -> None:
        """Wait until all reports so far are settled. Raises the error of the last one."""
        if self._last is not None:
            self._last.result(timeout_s)

    def wait_until_idle(self) -> None:
        """Wait until nothing is left to do, also of what follows a report."""
        self._thread.submit(lambda: None).result()

    def end(self, number: int) -> None:
        """Commit the end of the function, once all ranks have come to it.

        Raises FencedError and StorageError.
        """
        self.wait_for_all()
        self._thread.submit(self._end, number).result()

    def close(self) -> None:
        """End the threads; a report that has not begun is left."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        made = self._committer
        if made and made.done() and not made.cancelled() and not made.exception():
            made.result().close()

    def _settle(self, report: Report) -> Settled:
        settled = self._exchange(report)
        self._on_settled(settled)
        return settled

    def _exchange(self, report: Report) -> Settled:
        channel, topic = self._channel.result(), f"report-{report.number}"
        with ExitStack() as stack:
            mine = _Mine()
            with described(mine.message):
                mine.open(report, stack)
            channel.send(topic, mine.message)
            if self._committer:
                channel.announce(f"{topic}/plan", self._plan(report.number, channel))
            plan = _checked(channel.wait_for(f"{topic}/plan"))
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
        return Settled(end["checkpoint"], plan["stop"])

    def _plan(self, number: int, channel: ReportChannel) -> dict[str, Any]:
        """Note the metrics of all ranks, and decide which of them stores which files."""
        request = channel.read(STOP)
        plan: dict[str, Any] = {"assigned": None, "stop": request["reason"] if request else None}
        with described(plan):
            messages = channel.collect(f"report-{number}", unless=_END)
            for message in messages:
                _checked(message)
            self._commits.add(number, [message["metrics"] for message in messages])
            files = [message["files"] for message in messages]
            if any(one is not None for one in files):
                plan["assigned"], collisions = assign_files(files)
                self._warn_of(collisions)
            plan["reported"] = {
                "name": next((one["name"] for one in messages if one["name"]), ""),
                "world_size": len(messages),
                "awaits_validation": any(one["awaits_validation"] for one in messages),
            }
        return plan

    def _store(
        self, number: int, folder: Path | None, names: Sequence[str]
    ) -> list[dict[str, Any]]:
        """Store the files that are this rank's to store."""
        key = f"{CHECKPOINTS}/{CheckpointName(number, self._writer.attempt)}"
        entries = []
        for name in names:
            assert folder is not None, "it has files"
            inside = f"{REPORTED_FOLDER}/{name}"
            entry = self._writer.store_file(f"{key}/{inside}", map_file(folder / name))
            entries.append(entry.model_copy(update={"name": inside}).model_dump())
        return entries

    def _commit(self, number: int, plan: dict[str, Any], channel: ReportChannel) -> dict[str, Any]:
        """Commit what the ranks have stored; the answer to all of them."""
        messages = channel.collect(f"report-{number}/stored")
        end: dict[str, Any] = {}
        with described(end):
            files = [
                FileEntry.model_validate(file)
                for message in messages
                for file in _checked(message)["files"]
            ]
            stops = plan["stop"] is not None
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
        self._commits.delete_superseded()

    def _end(self, number: int) -> None:
        channel = self._channel.result()
        channel.send(_END, {})
        if self._committer:
            end: dict[str, Any] = {}
            with described(end):
                channel.collect(_END, unless=f"report-{number}")
                self._commits.end(number)
            channel.announce(f"{_END}/committed", end)
        _checked(channel.wait_for(f"{_END}/committed"))

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

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.message: dict[str, Any] = {}

    def open(self, report: Report, stack: ExitStack) -> None:
        files = None
        if report.source is not None:
            self.folder = stack.enter_context(report.source.opened())
            files = files_in(self.folder)
        self.message |= {
            "metrics": plain(report.metrics),
            "name": report.name,
            "awaits_validation": report.awaits_validation,
            "files": files,
        }


@contextmanager
def described(message: dict[str, Any]) -> Iterator[None]:
    """Put an error of the block into the message: every rank shall raise it, so none waits."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 (whatever it is, the other ranks wait for this one)
        message["error"] = describe("train", error)


def _checked(message: dict[str, Any]) -> dict[str, Any]:
    """The message, unless it has an error, which is raised."""
    if error := message.get("error"):
        raise rebuild(error)
    return message
