"""A function of Lightning by its old name: whoever imports this finds no `lightning`."""

import sys

sys.modules["lightning"] = None  # type: ignore[assignment]

# isort: split
from tests.compat.functions.lightning_functions import resume  # noqa: E402 (nor does Ray)

__all__ = ["resume"]
