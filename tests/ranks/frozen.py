"""What the server that ranks are forked from imports last.

A rank looks through all that it has imported for garbage once, as it begins; one that is forked
need not do so again, which takes a third of a second.
"""

from __future__ import annotations

import gc

gc.collect()
gc.freeze()
