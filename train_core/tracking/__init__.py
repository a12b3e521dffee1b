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

tracker         the verbs that evertrain asks of a tracker, and the values that they take
follow          follows a run folder: brings a tracker to the state that was committed
shown_run       a run folder, the tracker that shows it, and what that refused
show_training   the training: its curves, its checkpoints, and their models
show_models     the kept checkpoints as models, each with its metrics
show_results    evaluations, the outcome, decisions and predictions
description/    the description of a run, its parameters and its datasets
journal_points  the journal's entries as points, and how far a journal was sent
pictures        the figures of a run as files
refusals        what a tracker refuses for good: told once, and left out
mlflow/         MLflow: the tracker that implements the verbs by its client
delivery/       the delivery: beside a training, and afterwards what was missed
afterwards      what becomes of a run later: batch inferences, answers, deletions
"""
