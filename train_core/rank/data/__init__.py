"""Batches of a workload's datasets, and new data to score."""
