"""Whoever imports this finds no `lightning`, as where only `pytorch_lightning` is installed."""

import sys

sys.modules["lightning"] = None  # type: ignore[assignment]
