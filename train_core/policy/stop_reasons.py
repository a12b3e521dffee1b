"""Why a training ends."""

from __future__ import annotations

STOPPED = "request"
"""What a checkpoint says of why its training ended there, if that was asked for."""
