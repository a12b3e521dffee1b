"""The delivery to MLflow: beside a training, and afterwards what MLflow has missed."""
