"""Decisions as pure functions and frozen values: no disk, no clock, and no torch, Ray or MLflow.

The numbers of a training:

* `randomness`: seeds, and random numbers of each sample, derived from what they are for
* `sample_order`: which sample is at which position of an epoch
* `steps`: which positions each shard of each step computes
* `sharding`: which shards a rank computes, and the order in which their gradients are summed

Its checkpoints:

* `save_schedule`: when a checkpoint is taken
* `save_state`: what became of the last one
* `layout`: which tensor is in which file, and which rank writes it
* `segments`: how many segments of the journal become one
* `selection`: which checkpoint is best
* `retention`: which checkpoints stay, and why

How attempts and runs go on and end:

* `membership`: with how many workers an attempt begins, and when others would be better
* `restarts`: what follows an attempt
* `stop_reasons`: why a training ends, and whether that still holds
* `end_status`: how a run ended
* `changes`: whether another training would give anything new

Names:

* `metric_names`: of metrics
* `logins`: logins in URLs, which are neither recorded nor shown
"""
