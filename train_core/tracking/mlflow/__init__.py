"""MLflow: the tracker that implements the verbs of `tracking/tracker.py` by its client.

mlflow_tracker   MLflow as a tracker: shows one run in an MLflow experiment
runs             the MLflow runs of a run: one with its training, nested ones for scoring
search_runs      the MLflow run of a search, which the runs of its trials are nested in
existing_runs    the MLflow runs of a run folder that exist: asked for, or deleted
send_metrics     metrics in MLflow's form, and the requests that carry them
system           the load of the machine that drives the run
models/          checkpoints as models in MLflow
serving          the model that MLflow serves: raw columns in, predictions out

server           an MLflow server or a database: clients, experiments, kinds of errors
passing_client   a client that leaves out what is refused for good
client_settings  the settings of MLflow's client: environment variables
"""
