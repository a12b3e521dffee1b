"""Old names of `train_core.tracking`."""
