"""The address that models in MLflow name which an earlier evertrain has logged."""

from train_core.engine.tracking.serving import _load_pyfunc

__all__ = ["_load_pyfunc"]
