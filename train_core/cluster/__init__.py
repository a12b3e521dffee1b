"""Ray: starting it, its jobs, the pool of workers, their slots, calls to them and the outcomes.

Ray Train is in `train_core/functions`.
"""
