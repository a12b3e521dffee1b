"""Batches, and new data to score."""
