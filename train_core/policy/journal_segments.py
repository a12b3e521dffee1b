"""Which segments of a journal are merged, so that n steps make about log2(n) segments."""

from __future__ import annotations

from collections.abc import Sequence


def segments_to_merge(sizes: Sequence[int], new: int) -> int:
    """How many of the last segments, of these sizes, become one with a new one of size `new`.

    A segment is merged with what follows it once that is half as large. So each is more than twice
    as large as the next one, and a byte is written again only when its segment grows by half.
    """
    count = 0
    while count < len(sizes) and sizes[-1 - count] <= 2 * new:
        new += sizes[-1 - count]
        count += 1
    return count
