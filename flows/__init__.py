"""Prefect flows, which order the tasks, and the command line in front of them."""
