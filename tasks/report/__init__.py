"""What Prefect shows of a run."""
