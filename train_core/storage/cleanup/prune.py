"""Pruning: everything of a run folder that nothing keeps, and why each other thing stays."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from train_core.policy.checkpoints.retention import RetentionRules
from train_core.results import ModelVersion
from train_core.storage.cleanup.delete_checkpoint import delete_unless_pinned
from train_core.storage.cleanup.orphans import delete_orphans, find_orphans
from train_core.storage.cleanup.retention_of_run import verdicts
from train_core.storage.coordination import pins
from train_core.storage.run_folder import Commit, RunFolder
from train_core.storage.run_writer import RunWriter
from train_core.storage.verification.checkpoints import file_faults

Kind = Literal["checkpoint", "damaged", "newer", "quarantined", "orphan"]
"""`newer`: a newer evertrain committed it; nothing is pruned then."""


@dataclass(frozen=True)
class Finding:
    """A checkpoint or an orphan, and whether it is deleted."""

    name: str
    """A checkpoint's name; an orphan's key in the run folder."""
    kind: Kind
    goes: bool
    why: str
    """Why it stays; for an orphan, why it goes."""
    size_bytes: int = 0
    """Of a checkpoint's files, as far as known."""


@dataclass(frozen=True)
class Pruning:
    """What to prune and by which rules.

    The newest checkpoint is read whole: if it is not what was committed, a resume begins with an
    older one, and the rules are applied to what is good. What is damaged or quarantined stays
    and is shown, so that people can inspect it.
    """

    folder: RunFolder
    rules: RetentionRules
    now: datetime
    champions: Callable[[], Collection[ModelVersion]]
    """The versions that are a champion now and a checkpoint of the run; asked just before."""
    ignored_pins: Collection[str] = ()
    """The keys of pins that need not be respected."""

    def survey(self, attempt: int) -> list[Finding]:
        """What `attempt` would delete, and why each other thing stays; writes nothing.

        Raises StorageError or CheckpointError where a reference cannot be read.
        """
        good, bad = self._judged()
        sizes = {str(one.name): one.size_bytes for one in good}
        judged = verdicts(
            self.folder,
            good,
            self.rules,
            now=self.now,
            ignored_pins=self.ignored_pins,
            champions=self.champions(),
        )
        findings = [
            Finding(
                verdict.candidate.name,
                "checkpoint",
                goes=not verdict.is_kept,
                why="; ".join(verdict.reasons) or "no rule keeps it",
                size_bytes=sizes[verdict.candidate.name],
            )
            for verdict in judged
        ]
        findings += bad
        gone = [finding.name for finding in findings if finding.goes]
        orphans = find_orphans(self.folder, attempt, gone=gone)
        return findings + [Finding(one.key, "orphan", goes=True, why=one.why) for one in orphans]

    def carry_out(self, attempt: int) -> list[Finding]:
        """Delete on behalf of `attempt`, which has the run; gives what was found and done.

        Raises FencedError if a newer attempt has the run.
        """
        writer, findings = RunWriter(self.folder, attempt), []
        surveyed = self.survey(attempt)
        if any(one.goes and one.kind == "checkpoint" for one in surveyed):
            writer.delete_ray_snapshot()
        for finding in surveyed:
            if finding.kind == "orphan":
                continue
            if finding.goes and not delete_unless_pinned(
                writer, finding.name, ignored_pins=self.ignored_pins
            ):
                findings.append(replace(finding, goes=False, why="pinned just now"))
            else:
                findings.append(finding)
        # Only now: what was pinned meanwhile still needs its segments.
        orphans = find_orphans(self.folder, attempt)
        delete_orphans(writer, orphans)
        pins.sweep(self.folder.store)
        return findings + [Finding(one.key, "orphan", goes=True, why=one.why) for one in orphans]

    def _judged(self) -> tuple[list[Commit], list[Finding]]:
        """The good checkpoints, oldest first, and what stays because it is not good."""
        found = self.folder.scan()
        good, damaged = found.good, {str(name): why for name, why in found.damaged.items()}
        while good and (faults := file_faults(self.folder, good[-1])):
            damaged[str(good.pop().name)] = "; ".join(faults)
        kinds: dict[Kind, dict[str, str]] = {
            "damaged": damaged,
            "newer": {str(name): why for name, why in found.newer.items()},
            "quarantined": self.folder.quarantined() if found.quarantined else {},
        }
        return good, [
            Finding(name, kind, goes=False, why=why)
            for kind, reasons in kinds.items()
            for name, why in reasons.items()
        ]
