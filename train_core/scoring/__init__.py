"""Scoring with checkpoints: evaluation, batch inference, and the evidence of a gate."""
