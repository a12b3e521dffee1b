"""The checkpoints of a training: when one is due, its files, the best, and which are kept."""
