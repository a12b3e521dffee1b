"""Comparison and export of runs, the version of their code, and trainings without Ray.

compare          two states, or two runs, compared bit by bit
export           a checkpoint's weights as one file of their own
provenance       the version of the code, and what the bits of a run's numbers depend on
isolated_call    runs one function in this process, for `client/isolated.py`

Trainings without Ray, as `evertrain verify-resume` starts them:

standalone       one rank of a training, under torchrun
killed_in_place  a training whose rank 0 is killed, and the other processes train on
plain_training   the same training in plain PyTorch: no reducer, no hooks, no ranks
step_digests     the digests of all that a training step reads and changes
"""
