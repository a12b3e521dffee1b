"""What runs in the driver and in the workers: training, checkpoints, Ray, scoring, MLflow."""
