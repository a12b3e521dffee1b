"""What each rank of a training runs, and what reads its checkpoints: no Ray, no MLflow."""
