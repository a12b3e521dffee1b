"""Everything that imports MLflow.

A metric on its way to MLflow passes

1. on rank 0: `training/loop`, `checkpoint/journal_buffer`, and `checkpoint/writer`, which commits a
   segment of the journal (`storage/records/journal`) with a checkpoint
2. in the driver: `delivery/mirror`, which polls the run folder for new commits
3. `delivery/delivery_thread` and `delivery/sender`: send, and send again after a failure
4. `show_stages`: shows a stage as the run folder records it, in the runs of `mlflow_runs`
5. `metric_batches`: entries of the journal as MLflow's batches, and how far they were sent

`delivery/catch_up` does the same for a run that no process drives: `evertrain mirror`.
"""
