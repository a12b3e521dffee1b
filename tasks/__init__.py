"""Prefect tasks: adapters between the flows and the driver.

prepare              the prepare task: checks before any compute, and a training's lease
stages               the tasks `train`, `evaluate`, `infer`, `gate`, `promote`, `publish`
select               the select task: ranks checkpoints by a metric
report_predictions   the report task of a batch inference
mirror               the mirror task: brings MLflow up to date with a run
rollback             the rollback task: moves the champion of a registered model back

driver_session/      the session of a flow run: its driver, its stages' thread, its log
report/              artifacts of a run in Prefect's UI
prefect_server/      the connection to Prefect's server, the calling flow run, log filters
retries              which failures Prefect retries
timing               the seconds that tasks and their connection to Prefect's server wait
earlier_entrypoints  the flows under their earlier names `flows.…`, for old deployments
"""
