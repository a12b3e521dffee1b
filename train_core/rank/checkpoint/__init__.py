"""Checkpoints of a training: taken, written, read and continued."""
