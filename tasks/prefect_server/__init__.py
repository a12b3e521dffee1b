"""Prefect's server."""
