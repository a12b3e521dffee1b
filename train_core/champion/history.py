"""What happened to a registered model, as its documents tell, and what follows from that.

Nothing here reads or writes: `log` does. What follows is the fold of `policy/champion/model_state`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from train_core.champion.records import (
    Fault,
    Found,
    Record,
    champion_number_of,
    compared,
    events_of,
    is_answer_to,
    version_of,
)
from train_core.errors import CheckpointError, ConfigError
from train_core.policy.champion.gate_decision import Outcome
from train_core.policy.champion.model_names import CHALLENGER, CHAMPION, ModelAddress
from train_core.policy.champion.model_state import (
    Compared,
    Event,
    ModelState,
    NextStep,
    fold,
)
from train_core.results import Approval, ChampionEntry, Decision, GateResult, ModelVersion


@dataclass(frozen=True)
class ModelHistory:
    """The events of a registered model, oldest first, and their fold.

    A document that cannot be read hides no other; `check_whole` refuses it.
    """

    model: str
    storage: str
    found: tuple[Found, ...]
    versions: dict[int, ModelVersion]
    decisions: dict[Compared, Decision]
    approvals: dict[Compared, Approval]
    champions: tuple[ChampionEntry | Fault, ...]
    """The champions' entries, oldest first, and what may be one and cannot be read."""
    faults: tuple[Fault, ...]
    state: ModelState
    _places: dict[int | Compared, Found]
    """The documents of the versions and of the decisions."""

    @classmethod
    def of(cls, model: str, storage: str, documents: Iterable[Found]) -> ModelHistory:
        """The history that these documents tell, oldest first."""
        found = tuple(documents)
        versions: dict[int, ModelVersion] = {}
        decisions: dict[Compared, Decision] = {}
        approvals: dict[Compared, Approval] = {}
        champions: list[ChampionEntry | Fault] = []
        faults: list[Fault] = []
        places: dict[int | Compared, Found] = {}
        events: list[Event] = []
        for one in found:
            record = _on_its_checkpoint(one, versions)
            if isinstance(record, Fault):
                faults.append(record)
                champions += [record] if record.may_be_champion else []
                continue
            match record:
                case ModelVersion():
                    versions.setdefault(record.version, record)
                    places.setdefault(record.version, one)
                case Decision():
                    decisions.setdefault(compared(record), record)
                    places.setdefault(compared(record), one)
                case Approval():
                    key = record.version.version, record.champion_number
                    approvals.setdefault(key, record)
                case ChampionEntry():
                    champions.append(record)
            events += events_of(record)
        return cls(
            model,
            storage,
            found,
            versions,
            decisions,
            approvals,
            tuple(champions),
            tuple(faults),
            fold(events),
            places,
        )

    def followed_by(self, document: Found) -> ModelHistory:
        """The history with one more event."""
        return ModelHistory.of(self.model, self.storage, (*self.found, document))

    def check_whole(self) -> None:
        """Raise CheckpointError or ConfigError if a document cannot be read.

        It may be a person's rejection, or another champion: nothing is judged without it.
        """
        for fault in self.faults:
            if isinstance(fault.error, CheckpointError):
                raise CheckpointError(
                    f"{fault.error}; until somebody restores or deletes it, nothing is decided on "
                    f"model {self.model!r}"
                ) from fault.error
            raise fault.error

    @property
    def entries(self) -> list[ChampionEntry]:
        """The champions' entries that can be read, oldest first."""
        return [one for one in self.champions if isinstance(one, ChampionEntry)]

    @property
    def champion(self) -> ChampionEntry | None:
        """The newest entry: who is champion now.

        Raises CheckpointError or ConfigError if a newer document may be one and cannot be read.
        """
        newest = self.champions[-1] if self.champions else None
        if isinstance(newest, Fault):
            raise newest.error
        return newest

    def version(self, number: int) -> ModelVersion:
        """One version. Raises ConfigError if there is none of that number."""
        if found := self.versions.get(number):
            return found
        for fault in self.faults:
            if fault.version == number:
                raise fault.error
        there = ", ".join(map(str, sorted(self.versions))) or "none"
        raise ConfigError(
            f"model {self.model!r} in {self.storage} has no version {number}: {there}"
        )

    def next_version(self) -> int:
        """The number of a new version: greater than each that an event names."""
        return max((version_of(one).version for one in self._records()), default=0) + 1

    def next_champion_number(self) -> int:
        """The number of a new champion: greater than each that an event names.

        So no comparison with a champion whose entry was deleted counts as one with another.
        """
        return max(map(champion_number_of, self._records()), default=0) + 1

    def registered(self, run: str, digest: str) -> ModelVersion | None:
        """The newest version that is the run's checkpoint of this digest."""
        found = (self.versions[number] for number in sorted(self.versions, reverse=True))
        its = (one for one in found if (one.run, one.checkpoint_digest) == (run, digest))
        return next(its, None)

    def newest_version(self) -> ModelVersion | None:
        """The version of the greatest number. Raises what its document does, if unreadable."""
        for one in reversed(self.found):
            if isinstance(one.record, ModelVersion):
                break
            if isinstance(one.record, Fault) and one.number:
                raise one.record.error
        unread = [one.version for one in self.faults if one.version is not None]
        newest = max([*self.versions, *unread], default=None)
        return None if newest is None else self.version(newest)

    def resolve(self, address: ModelAddress) -> ModelVersion:
        """The version that an address means now. Raises ConfigError if there is none."""
        if address.version is not None:
            return self.version(address.version)
        if address.alias == CHAMPION:
            if (champion := self.champion) is None:
                raise ConfigError(f"model {self.model!r} in {self.storage} has no champion yet")
            return champion.version
        if address.alias == CHALLENGER and (newest := self.newest_version()):
            return newest
        raise ConfigError(
            f"model {self.model!r} in {self.storage} has no alias {address.alias!r}: "
            f"there are {CHAMPION} and {CHALLENGER}"
        )

    def number_of(self, version: ModelVersion) -> int:
        """The number of the event that registered it; 0: it was before the model had a log."""
        return self._places[version.version].number

    def result(self, decision: Decision, uri: str = "") -> GateResult:
        """What became of a decision: the answer that it asked for, and the champion's entry.

        `uri` is the address of one that is not among these documents any more.
        """
        made = (
            one
            for one in self.entries
            if one.version == decision.challenger and self._made_by(one) == compared(decision)
        )
        place = self._places.get(compared(decision))
        approval = self.approvals.get(compared(decision))
        is_its = approval is not None and is_answer_to(approval, decision)
        return GateResult(
            decision=decision,
            decision_uri=place.uri if place else uri,
            approval=approval if is_its else None,
            entry=next(made, None),
        )

    def what_follows(self, version: int) -> tuple[NextStep, GateResult | None]:
        """What follows for a version while the present champion serves, and the decision on it.

        It is the one that says what follows, or by which the version serves; but where somebody
        went back to it, or it is yet to be compared. None: the gate has never decided on it.
        """
        step, standing = self.state.next_step(version), self.state.standing(version)
        if step is NextStep.SERVES:
            made_by = self._made_by(self.entries[-1])
            standing = made_by if made_by in self.decisions else standing
        return step, self.result(self.decisions[standing]) if standing else None

    def newest_result(self, version: int) -> GateResult | None:
        """What became of a version, by the decision that counts; None: there is none.

        Raises CheckpointError or ConfigError if that may be in a document that cannot be read.
        """
        _, result = self.what_follows(version)
        last = self._places.get(compared(result.decision) if result else version)
        since = last.number if last else 0
        for fault in self.faults:
            if fault.version in (None, version) and self._may_tell(fault, since, result):
                raise fault.error
        return result

    def entry_of(self, result: GateResult) -> ChampionEntry:
        """The entry that makes a challenger the next champion."""
        decision, approval = result.decision, result.approval
        place = self._places.get(compared(decision))
        reason = decision.why
        if approval:
            by = f'{approval.person} ("{approval.reason}")'
            reason = f"approved by {by}: {decision.why_answered}"
        return ChampionEntry(
            number=self.next_champion_number(),
            version=decision.challenger,
            created_at=datetime.now(UTC).isoformat(),
            by="approval" if approval else "gate",
            decided_by=place.key if place else "",
            reason=reason,
            data_digest=decision.comparison.data_digest,
            num_rows=decision.comparison.num_rows,
        )

    def _may_tell(self, fault: Fault, since: int, result: GateResult | None) -> bool:
        """Whether that document may tell what became of a version after the event `since`."""
        if since and 0 < fault.number < since:
            # Whoever recorded that event had read it.
            return False
        if result is None:
            return True
        is_rejected = result.approval is not None and not result.approval.is_approved
        if result.entry or is_rejected:
            return False
        if result.decision.outcome != Outcome.KEEP:
            return True
        # It may be another decision, if another champion was chosen in between.
        if fault.champion_number is not None:
            return False
        return not (since and fault.number) or any(
            since < one.number < fault.number and isinstance(one.record, ChampionEntry | Fault)
            for one in self.found
        )

    def _records(self) -> Iterator[Record]:
        return (one.record for one in self.found if not isinstance(one.record, Fault))

    def _made_by(self, entry: ChampionEntry) -> Compared | None:
        """The comparison by which a version became champion; None: somebody went back to it."""
        if entry.by == "rollback":
            return None
        version = entry.version.version
        for comparison in self.decisions:
            its = comparison[0] == version
            if its and self._places[comparison].key == entry.decided_by:
                return comparison
        # Its decision is not among these documents.
        return version, entry.number - 1


def _on_its_checkpoint(found: Found, versions: dict[int, ModelVersion]) -> Record | Fault:
    """The record, or a fault if it is a decision on another checkpoint than the registered one."""
    record = found.record
    if not isinstance(record, Decision):
        return record
    registered = versions.get(record.challenger.version)
    # Not its time: a model that was deleted, and its versions registered again, has other times.
    if registered is None or _checkpoint(registered) == _checkpoint(record.challenger):
        return record
    error = CheckpointError(
        f"{found.uri} is on another checkpoint than the one that is "
        f"registered as {registered.address}"
    )
    return Fault(error, version=registered.version, number=found.number)


def _checkpoint(version: ModelVersion) -> tuple[str, str, str]:
    return version.run, version.checkpoint, version.checkpoint_digest
