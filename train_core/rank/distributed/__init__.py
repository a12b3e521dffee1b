"""torch.distributed: how the ranks of an attempt find each other and talk.

As an attempt begins:

rendezvous       how the ranks find each other: a key-value store that lives in the driver
group            the ranks that train together, and the small values that they exchange
earlier_commit   tells the ranks the newest commit of earlier attempts
processor        what a rank computes on, as far as the bits of the numbers depend on it

In each step:

control_message  what every rank has to know of a step, in one small all-reduce
host_copy        small values of a device, which the host waits for and for nothing else
reducer          gradients summed over shards in one fixed binary tree, on any ranks
fsdp             strategy `fsdp`: each rank keeps a slice of weights and optimizer state
buffers          BatchNorm statistics and other buffers: those of shard 0 on every rank

Beside the steps:

stop_requests    the requests to stop of one attempt, for its ranks and its driver
rank_mailbox     messages of storing threads to rank 0's, outside of the collectives
pace             keeps a training at most one report ahead of its follower, as a search
watchdog         ends a process that makes no progress, and logs the stacks of its threads
"""
