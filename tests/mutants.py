"""Twenty faults that were put into the code by hand, and which tests of `make test` notice them.

    .venv/bin/python -m tests.mutants            # all of them: up to two hours
    .venv/bin/python -m tests.mutants lease      # the faults of one place

Each fault is put into a copy of the working tree, whose tests run until the first one fails. The
exit code says whether a fault went unnoticed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests import commands

ROOT = Path(__file__).parents[1]
PYTHON = ROOT / ".venv/bin/python"


@dataclass(frozen=True)
class Mutant:
    """A fault: in the file, the code `good` is replaced by `bad`."""

    place: str
    file: str
    good: str
    bad: str

    def put_into(self, tree: Path) -> None:
        """Change the file. Raises ValueError if the good code is not there, or more than once."""
        file = tree / self.file
        code = file.read_text()
        if code.count(self.good) != 1:
            raise ValueError(f"{self.file} has {self.good!r} {code.count(self.good)} times")
        file.write_text(code.replace(self.good, self.bad))


MUTANTS = (
    Mutant(
        "the commit's order: the manifest before the other ranks' files",
        "train_core/rank/checkpoint/storing_thread.py",
        "            files += self._files_of_others(save)\n"
        "            committed = self._insist(partial(self._commit, name, files, save))\n",
        "            committed = self._insist(partial(self._commit, name, files, save))\n"
        "            files += self._files_of_others(save)\n",
    ),
    Mutant(
        "the commit's order: a deletion that leaves the manifest for last",
        "train_core/storage/run_writer.py",
        '        store.delete(f"{CHECKPOINTS}/{name}/{MANIFEST_JSON}")\n'
        '        store.delete(f"{CHECKPOINTS}/{name}")\n',
        "        files = self.folder.checkpoint(name).manifest.files\n"
        "        for file in files:\n"
        '            store.delete(f"{CHECKPOINTS}/{name}/{file.name}")\n'
        '        store.delete(f"{CHECKPOINTS}/{name}")\n',
    ),
    Mutant(
        "a digest's check: of a checkpoint's files",
        "train_core/storage/records/verified_files.py",
        "    if digest != entry.digest:\n",
        "    if not digest:\n",
    ),
    Mutant(
        "a digest's check: of a document's own",
        "train_core/storage/records/documents.py",
        "    if data != content + _checksum(content):\n",
        "    if not content:\n",
    ),
    Mutant(
        "the reducer's order: ranks' sums one after the other, not by the tree",
        "train_core/rank/distributed/reducer.py",
        "        mine = tree_sum(self._root, slices, lambda left, right: left.add_(right))\n",
        "        mine = sum(slices.values())\n",
    ),
    Mutant(
        "the reducer's order: shards are added as they come",
        "train_core/rank/distributed/reducer.py",
        "        while node in self._siblings and self._siblings[node][0] in self.sums:\n"
        "            left, parent = self._siblings[node]\n",
        "        while self.sums:\n"
        "            left = next(iter(self.sums))\n"
        "            parent = Node(left.start, node.stop)\n",
    ),
    Mutant(
        "the lease: a fenced attempt may write once more",
        "train_core/storage/coordination/lease.py",
        "    if newest > attempt:\n        raise FencedError",
        "    if newest > attempt + 1:\n        raise FencedError",
    ),
    Mutant(
        "the lease: a living holder is not waited for",
        "train_core/storage/coordination/lease.py",
        '        end = wait_until_free(store, run, newest, timing) if newest else ""\n',
        '        end = ""\n',
    ),
    Mutant(
        "retention's references: the report's best",
        "train_core/storage/cleanup/retention_of_run.py",
        "    if best := reported_best(folder):\n",
        '    if best := reported_best(folder) and "nobody":\n',
    ),
    Mutant(
        "retention's references: a pin that came meanwhile",
        "train_core/storage/cleanup/delete_checkpoint.py",
        "        if others:\n            return False\n",
        "",
    ),
    Mutant(
        "a point mirrored twice: the entries of the last step that was sent",
        "train_core/tracking/journal_points.py",
        "after.entries if step == after.step else 0",
        "0",
    ),
    Mutant(
        "a point mirrored twice: the position lags behind its metrics",
        "train_core/tracking/journal_points.py",
        "            position = Position(step, len(found))\n",
        "            position = Position(step, len(found) - 1)\n",
    ),
    Mutant(
        "a signal that is ignored: SIGTERM of a command",
        "flows/cli/app.py",
        "    before = signal.signal(signal.SIGTERM, leave)\n",
        "    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)\n",
    ),
    Mutant(
        "a signal that is ignored: the request to stop",
        "train_core/storage/coordination/stop_request.py",
        "        key = _key(attempt)\n",
        "        key = _key(attempt + 1)\n",
    ),
    Mutant(
        "an exit code: of a command that was stopped",
        "flows/cli/app.py",
        "INTERRUPTED = 130\n",
        "INTERRUPTED = 0\n",
    ),
    Mutant(
        "an exit code: of bad input",
        "flows/cli/app.py",
        "BAD_INPUT = 2\n",
        "BAD_INPUT = 1\n",
    ),
    Mutant(
        "a preflight's refusal: resources that can never be given",
        "train_core/cluster/resources.py",
        "    if fewest > most:\n",
        "    if fewest > most + 8:\n",
    ),
    Mutant(
        "a preflight's refusal: a monitor that is not measured",
        "train_core/rank/metrics/evaluation_loop.py",
        "    if monitor not in metrics:\n",
        "    if not metrics:\n",
    ),
    Mutant(
        "a retry: of a bug in the user's code",
        "tasks/retries.py",
        "    is_final = isinstance(error, (UserCodeError, GaveUpError, UnsavedError))\n",
        "    is_final = isinstance(error, (GaveUpError, UnsavedError))\n",
    ),
    Mutant(
        "a retry: restarts without a new checkpoint have no end",
        "train_core/policy/restarts.py",
        "            restarts = 1 if end.has_progress else restarts + 1\n",
        "            restarts = 1\n",
    ),
)


def copy_of_tree(folder: Path) -> Path:
    """The files that git knows or would know, and the environment."""
    listed = subprocess.check_output(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, text=True
    )
    for source in (ROOT / one for one in listed.split("\0") if one):
        # The links of `importable/` lead to folders.
        if source.is_file() or source.is_symlink():
            target = folder / source.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    (folder / ".venv").symlink_to(ROOT / ".venv")
    return folder


def noticed_by(mutant: Mutant, more: list[str]) -> str:
    """The first test that fails with the fault in the code; empty: none does."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as scratch:
        tree = copy_of_tree(Path(scratch))
        mutant.put_into(tree)
        ended = commands.run(
            [
                *(PYTHON, "-m", "pytest", "-x", "-q", "-n", "4"),
                *("-m", "not slow and not s3 and not table"),
                # Before the environment's own path to the packages, which are without the fault.
                *("-o", "pythonpath=importable ."),
                # They look at the code itself, which is another one here.
                *(f"--ignore=tests/test_{name}.py" for name in ("mutants", "promises")),
                *more,
            ],
            cwd=tree,
            env=os.environ | {"PYTHONPATH": f"{tree}/importable:{tree}"},
        )
    if ended.returncode == 0:
        return ""
    found = re.search(r"^(?:FAILED|ERROR) (\S+::\S+)", ended.stdout, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"no test failed, and yet pytest did:\n{ended.stdout}{ended.stderr}")
    return found[1]


def main() -> None:
    wanted, more = sys.argv[1:2], sys.argv[2:]
    unnoticed = 0
    for mutant in MUTANTS:
        if wanted and wanted[0] not in mutant.place:
            continue
        test = noticed_by(mutant, more)
        unnoticed += not test
        sys.stdout.write(f"{mutant.place}: {test or 'NOBODY NOTICES'}\n")
        sys.stdout.flush()
    sys.exit(bool(unnoticed))


if __name__ == "__main__":
    main()
