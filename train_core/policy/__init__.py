"""Decisions as pure functions and frozen values: no disk, no clock, and no torch, Ray or MLflow.

* `samples/`: the numbers of a training: seeds, the order of samples, steps and shards
* `checkpoints/`: when a checkpoint is taken, its files, which is best, which stay
* `champion/`: the gate's decision, the champions of a model, whether a training is worth it
* `segments`: how many segments of the journal become one

How attempts and runs go on and end:

* `membership`: with how many workers an attempt begins, and when others would be better
* `restarts`: what follows an attempt
* `stop_reasons`: why a training ends, and whether that still holds
* `end_status`: how a run ended

Names:

* `metric_names`: of metrics
* `logins`: logins in URLs, which are neither recorded nor shown
"""
