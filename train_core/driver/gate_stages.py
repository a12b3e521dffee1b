"""The stages `gate` and `promote`: they register a checkpoint, decide, and move the champion.

Each step is committed before the next, and is found again by a driver that takes over:

    1. the version          _models/NAME/versions/          claimed by one run
    2. the decision         <run>/decisions/NAME/           created once
    3. the champion         _models/NAME/champions/         the next number has one winner

Whoever loses the third has compared the challenger with a champion that is no more, so it begins
again with the second. See docs/design/champion.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

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
from train_core.storage.records.names import DecisionName
from train_core.storage.registered_models.decisions import (
    RunDecisions,
    entry_of,
    find_decision,
    gate_result,
    is_answer_to,
    newest_decision,
    what_follows,
)
from train_core.storage.registered_models.model_registry import ModelRegistry
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
        self.registry = ModelRegistry(folder.storage, name)

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
        result = gate_result(self._folder, result.decision)
        while not result.entry:
            # Read again just before the entry: a person may have rejected it meanwhile.
            step, result = self._decided(version)
            if step is not NextStep.PROMOTE:
                break
            self._held.check()
            try:
                entry = entry_of(self._folder, result.decision, result.approval)
                return result.model_copy(update={"entry": self.registry.add_champion(entry)})
            except FileExistsError:
                _log.info("another champion was chosen meanwhile: the challenger is compared again")
        return result

    def _register(self, best: CheckpointSummary) -> ModelVersion:
        checkpoint = self._folder.find(best.name)
        why = f"it is a version of the registered model {self.registry.model}"
        # The pin comes first: from then on no rule deletes what may become champion.
        pin(self._folder.store, checkpoint.name, REGISTERED_MODEL, why, is_lasting=True)
        self._held.check()
        return self.registry.add_version(self._folder.name, best.name, checkpoint.digest)

    def _decided(self, version: ModelVersion) -> tuple[NextStep, GateResult]:
        """What follows for a version now, and by which decision, which is made if there is none."""
        while True:
            champion = self.registry.champion()
            step, result = what_follows(self._folder, version, champion)
            if champion and step is NextStep.SERVES:
                return step, self._result_of_champion(champion)
            if result and step is not NextStep.COMPARE:
                return step, result
            self._new_decision(version, champion)

    def _new_decision(self, version: ModelVersion, champion: ChampionEntry | None) -> None:
        made = (self._config, self._options, version, champion)
        measured = measure(self._pool(), self._folder, *made)
        outcome, reasons = decide(measured.metric, measured.order, measured.evidence, self._options)
        decision = Decision(
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
        self._held.check()
        self._held.writer.commit_decision(decision)

    def _result_of_champion(self, champion: ChampionEntry) -> GateResult:
        """What made this run's version the champion: its promotion, or a rollback to it."""
        decision = newest_decision(self._folder, champion.version)
        if champion.by != "rollback":
            version = champion.version
            name = DecisionName(version.model, version.version, champion.number - 1)
            decision = find_decision(self._folder, name)
        if decision is None:
            raise CheckpointError(
                f"{champion.version.address} is the champion, and the decision on it is not in "
                f"{self._folder.url} any more"
            )
        return gate_result(self._folder, decision).model_copy(update={"entry": champion})

    def _record(self, decision: Decision, approval: Approval) -> None:
        """Record a person's answer, unless another one stands."""
        version, champion = decision.challenger, self.registry.champion()
        found = RunDecisions.read(self._folder, version.model, version.version, champion)
        if found.state.can_be_answered(version.version, decision.champion_number):
            with suppress(FileExistsError):
                self._held.writer.commit_approval(decision, approval)
                return
        is_rejected = found.state.next_step(version.version) is NextStep.REJECTED
        counts = found.standing(version.version) if is_rejected else decision
        stands = gate_result(self._folder, counts or decision)
        if not (stands.approval and stands.approval.is_same(approval)):
            said = stands.summary if stands.approval else f"{version.address} is the champion"
            _log.warning("the answer of %s came second: %s", approval.who_said_what, said)
