from __future__ import annotations

import sys

import pytest

from train_core.errors import WorkloadError
from train_core.loading import load_function


@pytest.mark.parametrize(
    ("function", "library", "extra"),
    [
        ("lightning_functions:resume", "lightning", "lightning"),
        ("pytorch_lightning_functions:resume", "pytorch_lightning", "pytorch-lightning"),
        ("deepspeed_functions:zero3", "deepspeed", "deepspeed"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(
    function: str, library: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"tests.compat.functions.{function}"
    # None in sys.modules makes its import fail as if it were not installed. The one of Lightning's
    # old name hides the new one, too.
    for missing in (library, f"{library}.pytorch", "lightning"):
        monkeypatch.setitem(sys.modules, missing, None)
    # The functions of the old name are those of the new one.
    for module in (name.partition(":")[0], "tests.compat.functions.lightning_functions"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(WorkloadError, match=rf"pip install 'evertrain\[{extra}\]'"):
        load_function(name)
