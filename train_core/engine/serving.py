"""The old name of `tracking/serving.py`: models that earlier versions logged are loaded by it."""

from train_core.engine.tracking.serving import _load_pyfunc

__all__ = ["_load_pyfunc"]
