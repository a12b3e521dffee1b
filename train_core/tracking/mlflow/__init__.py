"""MLflow: the tracker that implements the verbs of `tracking/tracker.py` by its client."""
