"""The rows: what of PyTorch is trained exactly, and what is refused."""

from __future__ import annotations

from tests.pytorch.case import Case
from tests.pytorch.situations import SITUATIONS

SECTIONS: dict[str, dict[str, Case]] = {"Situations": SITUATIONS}

TABLE: dict[str, Case] = {
    f"{section}: {name}": case for section, rows in SECTIONS.items() for name, case in rows.items()
}
