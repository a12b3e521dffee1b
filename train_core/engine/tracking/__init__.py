"""Everything that imports MLflow.

A metric on its way to MLflow passes

1. on rank 0: `training/loop`, `checkpoint/journal_buffer`, and `checkpoint/storing_thread`, which
   commits a segment of the journal (`storage/records/journal`) with a checkpoint
2. in the driver: `delivery/mirror`, which polls the run folder for new commits
3. `delivery/delivery_thread` and `delivery/run_sender`: send, and send again after a failure
4. `show_stages`: shows a stage as the run folder records it, in the runs of `mlflow_runs`
5. `send_metrics`: makes the requests, each with entries of the journal and how far it was sent

`delivery/catch_up` does the same for a run that no process drives: `evertrain mirror`.
"""
