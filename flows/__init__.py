"""Prefect flows, which order the tasks, and the command line in front of them.

retrain          the retrain flow: train, evaluate, select, infer, gate, promote, publish
batch_inference  the batch inference flow: new data scored with a checkpoint of a run
mirror           the mirror flow: sends MLflow what it missed in an outage
rollback         the rollback flow: an earlier version is the champion again
search           `retrain_best`: the best trial of a search goes on as a pipeline

driving          how a flow drives its stages, with Prefect's server and without it
flow_runs/       flow runs in Prefect: how they wait, end, crash or are cancelled
parameters       the parameters of the retrain flow
defaults         the storage and the address of MLflow where none is set
databases        new databases for Prefect and MLflow: copies of empty ones
timing           the seconds that flows and the command line wait
automations      Prefect's automations from a file: created once, and updated

cli/             the command `evertrain`
"""

from train_core.search_path import put_users_folders_last

# IMPORTANT: before the other modules here are imported, with pydantic and Prefect. The command has
# the folders of PYTHONPATH at the beginning, and Prefect puts the deployment's folder there.
put_users_folders_last()
