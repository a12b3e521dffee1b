"""What MLflow is told of a run: its description, its parameters and its datasets."""
