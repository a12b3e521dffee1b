"""The digest of all that is stored: BLAKE3, 256 bits, in hexadecimal (`b3sum` gives the same)."""

from __future__ import annotations

from typing import Final

from blake3 import blake3

ALGORITHM: Final = "blake3"


def new_digest() -> blake3:
    """A digest to be made piece by piece: `update`, then `hexdigest`."""
    return blake3()


def digest_of(data: bytes | memoryview) -> str:
    """The digest of the bytes."""
    return blake3(data).hexdigest()
