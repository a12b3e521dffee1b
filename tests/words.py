"""What no message says."""

from __future__ import annotations

import re

PYTHONS_WORDS = re.compile(
    r"[a-z]Error\b|to unpack|object is not|not iterable|has no attribute|expected at most"
    r"|set_int_max|pydantic"
)
"""Words of Python's own errors: whoever reads them would have to know the code."""
