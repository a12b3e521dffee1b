"""Ray: starting it, its jobs, the pool of workers, their placement, calls to them and failures.

Ray Train is in `engine/ray_train`.
"""
