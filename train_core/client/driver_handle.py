"""A driver, which runs the stages of one run: its one face, wherever it runs.

Ray, torch and MLflow live with the driver and not in the flow's process: a Ray started from a
thread that ends takes its program with it, and Prefect runs tasks in threads. On one machine the
driver is a process of its own, which is called by a pipe; with a `ray_address` it is a job of that
cluster, which is called by its mailbox in the run folder, and outlives who calls it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Protocol, Self

from train_core.client.carriers.pipe import Pipe
from train_core.config import LOCAL
from train_core.errors import EvertrainError, StoppedError
from train_core.inside import refuse_inside
from train_core.policy.end_status import EndStatus
from train_core.requests import Prepared, Request
from train_core.stages import CLOSE, PREPARE, ArgumentsT, ResultT, Stage


class Carrier(Protocol):
    """Carries calls to a driver, and their results back."""

    @property
    def is_alive(self) -> bool:
        """Whether the driver may still be asked."""

    def call(self, stage: Stage[ArgumentsT, ResultT], arguments: ArgumentsT) -> Future[ResultT]:
        """The result of a stage, or what it raises; the first stage is `prepare`."""

    def end(self, timeout_s: float) -> None:
        """End in order, after `close`, or the death of the driver."""

    def kill(self) -> None:
        """End at once. A driver that is a process is killed, one that is a job goes on."""


class Driver:
    """A handle on a driver, from `start`; use it as a context manager.

    `prepared` waits for the outcome of the checks, and `ask` for a stage; both may be called from
    any thread. Errors of the driver are raised here with their own types: a ConfigError (never
    retried), a RunBusyError, or a StageError with the traceback of the first rank that failed.
    """

    def __init__(self, request: Request, carrier: Carrier) -> None:
        self.request = request
        self.carrier = carrier
        self._preparing = carrier.call(PREPARE, PREPARE.arguments(request=request))

    @classmethod
    def start(cls, request: Request, on_log: Callable[[str], None] | None = None) -> Self:
        """Start the driver, or attach to the job that is it; it checks the request at once.

        `on_log` is called with each line that the driver or a worker logs. Raises WorkloadError
        inside a process of evertrain's, or as a workload is imported.
        """
        refuse_inside()
        if request.config.ray_address == LOCAL:
            return cls(request, Pipe.start(on_log))
        # Imported late: a local run needs no client for HTTP.
        from train_core.client.carriers.job import JobCarrier

        return cls(request, JobCarrier(request, on_log or _say_nothing))

    @property
    def is_alive(self) -> bool:
        """Whether the driver may still be asked; a dead one answers nothing any more."""
        return self.carrier.is_alive

    def prepared(self, timeout_s: float | None = None) -> Prepared:
        """The outcome of the checks. Raises ConfigError or RunBusyError, and TimeoutError."""
        return self._preparing.result(timeout_s)

    def ask(self, stage: Stage[ArgumentsT, ResultT], arguments: ArgumentsT) -> ResultT:
        """The result of a stage, once it is carried out."""
        return self.carrier.call(stage, arguments).result()

    def begin(self, stage: Stage[ArgumentsT, ResultT], arguments: ArgumentsT) -> Future[ResultT]:
        """What the stage will give, or raise; it is carried out meanwhile."""
        return self.carrier.call(stage, arguments)

    def close(self, status: EndStatus = EndStatus.FINISHED, timeout_s: float = 60) -> None:
        """End the driver, with the run's status for MLflow.

        A training that still runs gets its `grace_s` beside the timeout, and saves. A job of a
        cluster goes on if others have attached to it.
        """
        timeout_s += self.request.config.grace_s
        if self.carrier.is_alive:
            try:
                with suppress(TimeoutError, EvertrainError):
                    closing = self.carrier.call(CLOSE, CLOSE.arguments(status=status))
                    closing.result(timeout_s)
            except BaseException:
                # An interrupt of the wait, as by a second Ctrl-C, asks for the end at once.
                self.carrier.kill()
                raise
        self.carrier.end(timeout_s)

    def detach(self) -> None:
        """Call no more, at once; a job on a cluster goes on without this caller."""
        self.carrier.kill()
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(end_status(kind))


def end_status(kind: type[BaseException] | None) -> EndStatus:
    """MLflow's status for a run that ended with an exception of this class, or with none."""
    if kind is None:
        return EndStatus.FINISHED
    was_stopped = issubclass(kind, StoppedError) or not issubclass(kind, Exception)
    return EndStatus.KILLED if was_stopped else EndStatus.FAILED


def _say_nothing(_: str) -> None:
    """Take a line of the log that nobody asked for."""
