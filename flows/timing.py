"""How long things may take at the end of a flow run. Imports nothing: Prefect is loaded late."""

from __future__ import annotations

SEND_WITHIN_S = 10.0
"""How long Prefect's threads have at the end to send what they know."""
