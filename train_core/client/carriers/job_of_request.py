"""Which job of a cluster carries out a request: one that is there, or a new one and its name."""

from __future__ import annotations

import random
import string
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from typing import Protocol

from train_core.client.carriers.ray_jobs import RayJobs
from train_core.errors import StorageError
from train_core.storage.coordination import lease
from train_core.storage.coordination.job_mailbox import Mailbox, jobs_with_calls
from train_core.storage.objects.digest_algorithm import digest_of
from train_core.storage.records.names import JobName
from train_core.storage.run_folder import RunFolder


class JobChoice(Protocol):
    """Chooses the job of a request."""

    def running(self, jobs: RayJobs) -> str:
        """The job to attach to; empty if there is none."""

    def new_names(self) -> Iterator[str]:
        """Names for a new job, to be tried in this order."""

    def clear_dead(self, mailbox: Mailbox) -> None:
        """Delete the mailbox of a job that died, if nobody else will."""


class JobOfRun:
    """The job that drives a run: at most one, which all callers share.

    It is named after the run and the attempt that it begins.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def running(self, jobs: RayJobs) -> str:
        """The job that drives the run."""
        names = jobs_with_calls(self._folder.store)
        return next((one for one in names if JobName.parse(one) and jobs.is_running(one)), "")

    def new_names(self) -> Iterator[str]:
        """One name, with the number of those that have ended before they began their attempt."""
        # Other storages may have a run of that name.
        where = digest_of(self._folder.url.encode())[:8]
        for number in count(1):
            attempt = lease.newest_attempt(self._folder.store) + 1
            yield str(JobName(self._folder.name, attempt, where, number))

    def clear_dead(self, mailbox: Mailbox) -> None:
        """The next job of the run does that."""


class JobOfScoring:
    """The job of a batch inference: a new one for each, which no other caller looks for."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def running(self, jobs: RayJobs) -> str:
        """None."""
        return ""

    def new_names(self) -> Iterator[str]:
        """Random names."""
        while True:
            letters = "".join(random.choices(string.ascii_lowercase, k=8))
            yield f"{self._folder.name}-score-{letters}"

    def clear_dead(self, mailbox: Mailbox) -> None:
        """Delete it: a job that drives the run clears those of its kind only."""
        with suppress(StorageError):
            mailbox.clear()
