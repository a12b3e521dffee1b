"""MLflow, and all that imports it."""
