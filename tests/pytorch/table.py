"""The rows: what of PyTorch is trained exactly, and what is refused."""

from __future__ import annotations

from tests.pytorch.case import Case
from tests.pytorch.layers import LAYERS, LOSSES
from tests.pytorch.optimizers import OPTIMIZERS, SCHEDULES
from tests.pytorch.situations import SITUATIONS

SECTIONS: dict[str, dict[str, Case]] = {
    "Situations": SITUATIONS,
    "Optimizers": OPTIMIZERS,
    "Schedules": SCHEDULES,
    "Layers": LAYERS,
    "Losses": LOSSES,
}

TABLE: dict[str, Case] = {
    f"{section}: {name}": case for section, rows in SECTIONS.items() for name, case in rows.items()
}
