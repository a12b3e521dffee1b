"""The numbers of a training, which are the same for any number of workers.

* `randomness`: seeds, and random numbers of each sample, derived from what they are for
* `sample_order`: which sample is at which position of an epoch
* `steps`: which positions each shard of each step computes
* `sharding`: which shards a rank computes, and the order in which their gradients are summed
"""
