"""Evaluation and batch inference with a checkpoint."""
