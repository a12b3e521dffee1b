"""The driver as a job of a cluster.

`python -m train_core.driver.job.entry STORAGE RUN JOB CALL`.

The driver process gets its calls through pipes; this one reads and answers them in the run folder.
It goes on when its callers are gone: a training runs to its end, and the next caller of the run
attaches to it.
"""

from __future__ import annotations

import logging
import os
import sys
from functools import partial

from train_core.driver.job.mailbox_transport import MailboxTransport
from train_core.driver.ray_session import ClusterRaySession
from train_core.driver.run_stages import stages_of
from train_core.driver.server import StageServer
from train_core.errors import ConfigError
from train_core.inside import mark_this_process
from train_core.policy.end_status import EndStatus
from train_core.proxies import ask_loopback_directly
from train_core.storage.coordination.job_mailbox import THE_JOB, Mailbox
from train_core.storage.run_folder import RunFolder
from train_core.text.log_lines import set_up_logging
from train_core.timing import TIMING, Timing

_log = logging.getLogger("train_core.driver")


def main(timing: Timing = TIMING) -> None:
    """Entry point: the storage, the run's name, the job's, and that of the first call."""
    set_up_logging(sys.stdout)
    # Ray's workers look into their driver's folder, too.
    sys.path.append(os.getcwd())
    ask_loopback_directly()
    storage, run, job, first = sys.argv[1:]
    status = None
    try:
        store = RunFolder(storage, run).store
        mailbox = Mailbox(store, job, THE_JOB, timing=timing.coordination)
        transport = MailboxTransport(mailbox, first, timing)
        # Prepared in this thread: a Ray that is joined from another one would be left with it.
        open_stages = partial(stages_of, ray=ClusterRaySession(timing), job=job, timing=timing)
        status = StageServer(transport, open_stages).serve()
        transport.clear()
    except ConfigError as error:
        _log.error("%s", error)
    except BaseException:  # noqa: BLE001 (whatever it is, nobody else will say it)
        _log.exception("the job ends")
    finally:
        logging.shutdown()
        # Threads that train, or wait for a storage or a server, must not keep it.
        os._exit(0 if status == EndStatus.FINISHED else 1)


if __name__ == "__main__":
    mark_this_process("driver")
    main()
