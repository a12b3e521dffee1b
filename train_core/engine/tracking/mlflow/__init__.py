"""MLflow: the tracker that implements the verbs of `engine/tracking/tracker.py` by its client."""
