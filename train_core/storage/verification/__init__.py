"""Verification: whether a checkpoint and a run still are what was committed."""
