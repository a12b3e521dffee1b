"""evertrain for programs without torch: work that needs it runs in processes of its own.

The driver of a run, as a flow calls it:

driver_handle  a handle on a driver, wherever it runs: start, ask for stages, close
carriers/      carry calls to a driver: a pipe to a process here, or the mailbox of a job
live           the current position of a training, read from live.json

Runs and their checkpoints:

runs           open, stop, extend, fork, delete and prune a run
run_summaries  the runs of a storage, and the state of each
run            a run to look at, as from a notebook: metrics as a DataFrame, checkpoints
checkpoint     a checkpoint to look at: step, metrics, verified files in a local folder
checkpoints    the checkpoints of a run: listed, shown, verified and exported
diff           two runs or two checkpoints, compared as `evertrain diff` does
scoring        scores data with a checkpoint of a run that exists
champions      the champions of a registered model: history, rollback, a person's answer
verify_resume  the proof that a workload is trained and resumed exactly
isolated       functions that need MLflow or Ray, each called in a process of its own
"""
