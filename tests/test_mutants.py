"""The faults of tests/mutants.py can still be put into the code."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.mutants import MUTANTS, ROOT, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.place)
def test_a_fault_changes_the_code_and_leaves_it_python(mutant: Mutant, tmp_path: Path) -> None:
    target = tmp_path / mutant.file
    target.parent.mkdir(parents=True)
    shutil.copy(ROOT / mutant.file, target)
    mutant.put_into(tmp_path)
    changed = target.read_text()
    assert changed != (ROOT / mutant.file).read_text()
    compile(changed, mutant.file, "exec")
    with pytest.raises(ValueError, match="0 times"):
        mutant.put_into(tmp_path)
