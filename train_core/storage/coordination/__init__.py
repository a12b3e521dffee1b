"""Rights to a run and messages about it: lease, pins, requests to stop, the mailbox of a job.

lease             which attempt may write to a run, and whether its process still lives
holder            which process holds a lease or a pin, and whether it still runs
heartbeat         a counter that a process moves while it lives, and how others judge it
fence_list        which checkpoints of earlier attempts exist as an attempt begins

pins              keep a checkpoint from being deleted while it is read
deletion_notices  notices that a checkpoint is being deleted: announced, then decided

stop_request      the request that an attempt shall save and end
job_mailbox       calls of stages to a job: an object for each, and one for its answer
"""
