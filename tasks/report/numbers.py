"""Numbers as they are shown."""

from __future__ import annotations


def number(value: object) -> str:
    """A metric as it is shown: four digits, small ones as 1.0e-05, a dash for a missing one."""
    if isinstance(value, float):
        return f"{value:.1e}" if 0 < abs(value) < 0.001 else f"{value:.4f}"
    return "-" if value is None else str(value)
