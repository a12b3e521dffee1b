"""The command `evertrain`.

app                 the command, its subcommands and its exit codes
commands/           the subcommands, each a model of its arguments
arguments           arguments that several commands share
configuration       the defaults of `retrain`: a `--config` file's, then its run's
configuration_file  a YAML or JSON file of parameters, checked before and after parsing
refusals            what is wrong with the arguments of a command, in one line

run_pipeline        runs the retrain flow in this process
run_inference       runs the batch inference flow in this process
prefect_server      Prefect inside the command: a temporary server, started beside Ray
local_servers       MLflow's and Prefect's own servers, as `evertrain ui` starts them
mlflow_page         the address of MLflow's page with the runs, found without MLflow

output/             progress, tables and summaries on the terminal
"""
