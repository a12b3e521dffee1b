"""Everything that imports MLflow."""
