"""Decisions as pure functions and frozen values: no disk, no clock, and no torch, Ray or MLflow.

The rules of a decision are a group of a training's parameters: `TrainConfig` inherits it, and is
given to the function as it is.

* `options`: what these groups have in common
* `samples/`: the numbers of a training: seeds, the order of samples, steps and shards
* `checkpoints/`: when a checkpoint is taken, its files, which is best, which stay
* `champion/`: the gate's decision, the way back to an earlier champion, what has changed since

How attempts and runs go on and end:

* `membership`: with how many workers an attempt begins, and when others would be better
* `restarts`: what follows an attempt
* `stop_reasons`: why a training ends, and whether that still holds
* `end_status`: how a run ended

Files:

* `journal_segments`: which segments of the journal become one

Names and addresses:

* `metric_names`: of metrics
* `findings`: of what a rehearsal tries
* `logins`: logins in URLs, which are neither recorded nor shown
* `mlflow_pages`: of MLflow's pages
"""
