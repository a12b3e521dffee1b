"""Checkpoints as models in MLflow."""
