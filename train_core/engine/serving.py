"""The oldest name of `tracking/mlflow/serving.py`."""

from train_core.tracking.mlflow.serving import _load_pyfunc

__all__ = ["_load_pyfunc"]
