"""What trackers show of runs. MLflow is one: `mlflow/`.

A metric on its way to a tracker passes

1. on rank 0: `rank/loop`, `rank/checkpoint/journal_buffer`, and
   `rank/checkpoint/storing_thread`, which commits a segment of the journal
   (`storage/records/journal`) with a checkpoint
2. in the driver: `delivery/mirror` and `delivery/delivery_thread`, which call
   `delivery/run_sender` in a loop, and again after a failure
3. `follow`: reads what the run folder has committed, and shows it by the verbs of `tracker`
4. `mlflow/mlflow_tracker`, `runs` and `send_metrics`: the verbs as requests to MLflow

`delivery/catch_up` follows a run that no process drives: `evertrain mirror`.
"""
