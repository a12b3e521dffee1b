"""The name of `tracking/mlflow/serving.py` in models that earlier versions logged."""

from train_core.tracking.mlflow.serving import _load_pyfunc

__all__ = ["_load_pyfunc"]
