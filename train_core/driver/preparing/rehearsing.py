"""The rehearsal of a run that begins, if none of the same code, settings and versions passed."""

from __future__ import annotations

import json
import logging
import multiprocessing
from concurrent import futures
from concurrent.futures import Future
from multiprocessing.connection import Connection
from threading import Thread

from train_core.config import TrainConfig
from train_core.described_errors import describe, rebuild
from train_core.driver.preparing.preflight import Checked
from train_core.errors import WorkloadError, words_of
from train_core.rehearsal.check import rehearse_workload
from train_core.results import Finding, Rehearsal
from train_core.storage.objects.digest_algorithm import digest_of
from train_core.storage.records.data_files import FileList
from train_core.storage.records.run_record import RunRecord
from train_core.storage.runs_of_storage import recorded_runs

_log = logging.getLogger("train_core.driver")


def rehearsed(
    storage: str, record: RunRecord, config: TrainConfig, checked: Checked, *, within_s: float
) -> RunRecord:
    """The record of a run that begins, with what it was rehearsed with, if it passed.

    What is found, and what could not be tried, is logged. Raises WorkloadError for what the
    rehearsal refuses, unless the configuration accepts it, and what the workload's code raises.
    """
    digest = _digest(record, config)
    if digest not in _passed(storage, config.workload):
        found = _rehearsal(config, checked, within_s)
        if found is None:
            _log.warning(
                "%s was not rehearsed: it has not ended within %.0f s%s. To leave it out: "
                "--accept everything",
                config.workload,
                within_s,
                "" if config.rehearse_on == "gpu" else ", and may still compute in the driver",
            )
            return record
        _tell(found)
        if found.is_cut_short:
            return record
    return record.model_copy(update={"rehearsed": digest})


def _rehearsal(config: TrainConfig, checked: Checked, within_s: float) -> Rehearsal | None:
    """What a rehearsal finds; None: a hook of the workload has not come back in time."""
    beside = config.rehearse_on == "gpu"
    return (_in_own_process if beside else _in_thread)(config, checked, within_s)


def _in_thread(config: TrainConfig, checked: Checked, within_s: float) -> Rehearsal | None:
    end: Future[Rehearsal] = Future()

    def run() -> None:
        try:
            end.set_result(rehearse_workload(config, checked.files, checked.fitted))
        except SystemExit as error:
            end.set_exception(WorkloadError(f"{config.workload}: {words_of(error)}"))
        except BaseException as error:  # noqa: BLE001 (who waits raises it)
            end.set_exception(error)

    # Code of a user's cannot be ended from outside: a daemon's does not outlive the driver.
    Thread(target=run, name="rehearsal", daemon=True).start()
    done, _ = futures.wait([end], within_s)
    return end.result() if done else None


def _in_own_process(config: TrainConfig, checked: Checked, within_s: float) -> Rehearsal | None:
    """As `_rehearsal`; what it takes of a GPU is free again before a worker needs it."""
    # A process that is forked from one with threads may hang, and cannot use CUDA after it.
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(
        target=_send_rehearsal,
        args=(sending, config, checked.files, checked.fitted),
        name="rehearsal",
        daemon=True,
    )
    process.start()
    sending.close()
    try:
        answer = receiving.recv() if receiving.poll(within_s) else None
    except EOFError:
        process.join()
        raise WorkloadError(
            f"the process that rehearsed {config.workload} died with code {process.exitcode}. To "
            "leave the rehearsal out: --accept everything"
        ) from None
    finally:
        process.kill()
        process.join()
        receiving.close()
    if isinstance(answer, dict):
        raise rebuild(answer)
    return answer


def _send_rehearsal(
    sending: Connection, config: TrainConfig, files: FileList | None, fitted: bytes | None
) -> None:
    """Rehearse, and send what is found, or the error, described."""
    try:
        sending.send(rehearse_workload(config, files, fitted))
    except SystemExit as error:
        ended = WorkloadError(f"{config.workload}: {words_of(error)}")
        sending.send(describe("prepare", ended))
    except Exception as error:  # noqa: BLE001 (who receives it raises it)
        sending.send(describe("prepare", error))


def _tell(found: Rehearsal) -> None:
    """Log what was found. Raises WorkloadError for what is refused and not accepted."""
    tried = ", ".join(found.tried) or "nothing"
    _log.info("rehearsed %s in %.1f CPU seconds", tried, found.cpu_s)
    for line in found.left_out:
        _log.info("not rehearsed: %s", line)
    refused = []
    for one in found.findings:
        if one.name in found.accepted:
            _log.info("accepted: %s", one.message)
        elif one.is_refused:
            refused.append(one)
        else:
            _log.warning("%s", _shown(one))
    if refused:
        raise WorkloadError("; ".join(map(_shown, refused)))


def _shown(finding: Finding) -> str:
    """The finding in one line, with the flag that accepts it."""
    return f"{finding.message} (rehearsal; to accept it: --accept {finding.name})"


def _passed(storage: str, workload: str) -> set[str]:
    """The digests with which runs of a workload passed a rehearsal."""
    return {
        record.rehearsed
        for _, record in recorded_runs(storage)
        if record.config.workload == workload and record.rehearsed
    }


def _digest(record: RunRecord, config: TrainConfig) -> str:
    """Of all that a rehearsal depends on but the data."""
    facts = {
        "settings": record.config.settings,
        "config": config.deciding(),
        "accept": sorted(config.accept),
        "has_shards": config.shards > 1,
        "code": record.code,
        "modules": record.modules,
        "packages": record.packages,
        "fingerprint": record.fingerprint,
    }
    if config.rehearse_on == "gpu":
        facts["rehearse_on"] = "gpu"
    return digest_of(json.dumps(facts, sort_keys=True, default=str).encode())
