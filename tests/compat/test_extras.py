from __future__ import annotations

import sys

import pytest

from train_core.errors import WorkloadError
from train_core.loading import load_function


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    # None in sys.modules makes its import fail as if it were not installed.
    monkeypatch.setitem(sys.modules, "lightning", None)
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    monkeypatch.delitem(sys.modules, "tests.compat.functions.lightning_functions", raising=False)
    with pytest.raises(WorkloadError, match=r"pip install 'evertrain\[lightning\]'"):
        load_function("tests.compat.functions.lightning_functions:resume")
