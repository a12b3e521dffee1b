"""Ray: starting it, its jobs, the pool of workers, their slots, calls to them and the outcomes.

Ray Train is in `train_core/functions`.

runtime         Ray itself: starting it for this process, and seeing that it lives
lent            places for workers on somebody else's Ray, as Tune's for a trial
jobs            a cluster's dashboard and the upload of code, by Ray's own client

pool            the pool: one worker process for each rank, as long as the driver computes
slots           places for workers, reserved together; workers replaced one by one
spares          when the spares of a pool are started, and when not
worker_process  a worker: a Ray actor that runs functions named `module:name`
rank_order      the order of ranks by node and GPU, and the environment of each rank
worker_calls    calls on workers, which settle to an outcome for each slot
outcomes        how a call on a worker settles, and which failure caused the others

scaling         how many workers can be placed now, and when another number is better
resources       the resources that workers need, and those of this machine or a cluster
"""
