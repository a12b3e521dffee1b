"""What moves: the loop, the checkpointer, Ray, evaluation, inference, the MLflow mirror."""

# First, before any module here or of a user imports torchmetrics by itself.
from train_core import quick_imports as quick_imports
