"""What moves: the loop, the checkpointer, Ray, evaluation, inference, the MLflow mirror."""
