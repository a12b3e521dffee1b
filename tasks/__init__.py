"""Prefect tasks, one a file: adapters between the flows and the driver."""
