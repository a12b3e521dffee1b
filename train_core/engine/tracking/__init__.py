"""Everything that imports MLflow.

A metric on its way to MLflow passes, after the journal that lies in the run folder:

1. `delivery/mirror`: polls the run folder for new commits
2. `delivery/delivery_thread` and `delivery/sender`: send, and send again after a failure
3. `show_stages`: shows a stage as the run folder records it, in the runs of `mlflow_runs`
4. `metric_batches`: entries of the journal as MLflow's batches, and how far they were sent

`delivery/catch_up` does the same for a run that no process drives.
"""
