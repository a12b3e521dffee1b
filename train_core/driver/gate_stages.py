"""The stages `gate` and `promote`: they register a checkpoint, decide, and move the champion.

Each is an event of the model's log, recorded by what happened before it, and is found again by a
driver that takes over. Whoever finds, as he promotes, that the challenger was compared with a
champion that is no more compares it again. See docs/design/champion.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime

from train_core.champion.history import ModelHistory
from train_core.champion.log import ModelLog
from train_core.champion.records import is_answer_to
from train_core.cluster.pool import WorkerPool
from train_core.config import TrainConfig
from train_core.driver.held_run import HeldRun
from train_core.errors import CheckpointError
from train_core.policy.champion.gate_decision import decide
from train_core.policy.champion.gate_options import GateOptions
from train_core.policy.champion.model_names import default_model_name
from train_core.policy.champion.model_state import NextStep
from train_core.results import (
    Approval,
    ChampionEntry,
    CheckpointSummary,
    Decision,
    GateResult,
    ModelVersion,
)
from train_core.scoring.gate_evidence import measure
from train_core.storage.coordination.pins import REGISTERED_MODEL, pin
from train_core.storage.run_folder import RunFolder

_log = logging.getLogger("train_core.driver")


class Gate:
    """The gate of one run. `pool` gives the workers that score, when they are needed."""

    def __init__(
        self,
        folder: RunFolder,
        config: TrainConfig,
        options: GateOptions,
        held: HeldRun,
        pool: Callable[[], WorkerPool],
    ) -> None:
        self._folder = folder
        self._config = config
        self._options = options
        self._held = held
        self._pool = pool
        name = options.registered_model or default_model_name(config.workload)
        self.log = ModelLog(folder.storage, name)

    def decide(self, best: CheckpointSummary) -> GateResult:
        """Register the checkpoint, and decide on it in comparison with the champion of now."""
        return self._decided(self._register(best))[1]

    def promote(self, result: GateResult, approval: Approval | None) -> GateResult:
        """Make the challenger champion, if that was decided or is approved.

        Where another run has moved the champion meanwhile, it is compared with that one first; if a
        person has to be asked about that comparison, it is returned without an answer.
        """
        if result.entry:
            return result
        version = result.decision.challenger
        if approval and is_answer_to(approval, result.decision):
            self._record(result.decision, approval)
        # A retry may have carried it out already, and another run been faster since.
        result = self.log.read().result(result.decision, result.decision_uri)
        while not result.entry:
            step, result = self._decided(version)
            if step is not NextStep.PROMOTE:
                break

            def promotion(history: ModelHistory) -> ChampionEntry | None:
                # A person may have rejected it meanwhile, or another one be champion.
                step, result = history.what_follows(version.version)
                if step is not NextStep.PROMOTE or result is None:
                    return None
                self._held.check()
                return history.entry_of(result)

            result = self.log.record(promotion).result(result.decision)
        return result

    def _register(self, best: CheckpointSummary) -> ModelVersion:
        checkpoint = self._folder.find(best.name)
        why = f"it is a version of the registered model {self.log.model}"
        # The pin comes first: from then on no rule deletes what may become champion.
        pin(self._folder.store, checkpoint.name, REGISTERED_MODEL, why, is_lasting=True)
        version, number = self.log.register(
            self._folder.name, best.name, checkpoint.digest, self._held.check
        )
        self._held.writer.note_version(version, number)
        return version

    def _decided(self, version: ModelVersion) -> tuple[NextStep, GateResult]:
        """What follows for a version now, and by which decision, which is made if there is none."""
        while True:
            history = self.log.read()
            history.check_whole()
            champion = history.champion
            step, result = history.what_follows(version.version)
            if champion and step is NextStep.SERVES:
                return step, _result_of_champion(history, champion)
            if step is NextStep.COMPARE:
                self._new_decision(version, champion)
            elif result:
                return step, result
            else:
                raise CheckpointError(
                    f"{version.address} is rejected, and the decision on it is not in "
                    f"{self.log.store.url} any more"
                )

    def _new_decision(self, version: ModelVersion, champion: ChampionEntry | None) -> None:
        decision = self._compared(version, champion)

        def still_to_compare(history: ModelHistory) -> Decision | None:
            is_same = history.state.champion_number == decision.champion_number
            if not is_same or history.state.next_step(version.version) is not NextStep.COMPARE:
                return None
            self._held.check()
            return decision

        self.log.record(still_to_compare)

    def _compared(self, version: ModelVersion, champion: ChampionEntry | None) -> Decision:
        """The decision on a version in comparison with that champion."""
        made = (self._config, self._options, version, champion)
        measured = measure(self._pool(), self._folder, *made)
        outcome, reasons = decide(measured.metric, measured.order, measured.evidence, self._options)
        return Decision(
            created_at=datetime.now(UTC).isoformat(),
            challenger=version,
            champion=champion.version if champion else None,
            champion_number=champion.number if champion else 0,
            metric=measured.metric,
            order=measured.order,
            comparison=measured.comparison,
            evidence=measured.evidence,
            rules=self._options,
            outcome=outcome,
            reasons=reasons,
        )

    def _record(self, decision: Decision, approval: Approval) -> None:
        """Record a person's answer, unless another one stands."""
        version, number = decision.challenger, decision.champion_number

        def answer(history: ModelHistory) -> Approval | None:
            can_be = history.state.can_be_answered(version.version, number)
            return approval if can_be else None

        history = self.log.record(answer)
        step, counts = history.what_follows(version.version)
        stands = history.result(decision)
        if step is NextStep.REJECTED and counts:
            stands = counts
        if not (stands.approval and stands.approval.is_same(approval)):
            said = stands.summary if stands.approval else f"{version.address} is the champion"
            _log.warning("the answer of %s came second: %s", approval.who_said_what, said)


def _result_of_champion(history: ModelHistory, champion: ChampionEntry) -> GateResult:
    """What made a version the champion: its promotion, or a rollback to it."""
    _, result = history.what_follows(champion.version.version)
    if result is None or (champion.by != "rollback" and result.entry != champion):
        raise CheckpointError(
            f"{champion.version.address} is the champion, and the decision on it is not there any "
            "more"
        )
    return result.model_copy(update={"entry": champion})
