"""Artifacts of a run in Prefect's UI."""
