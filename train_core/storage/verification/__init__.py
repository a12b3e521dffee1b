"""Verification: whether a checkpoint and a run still are what was committed.

runs         all of a run: every document and every file
checkpoints  a checkpoint: its files and its journal, to the last byte
"""
