"""The subcommands of `evertrain`, each a model of its arguments with a `cli_cmd`.

A new command: a model here, a field in `flows/cli/app.py`, and its work as a function in
`train_core/client/`.

check          `check`: what would go wrong, before anything is trained
retrain        `retrain` and `demo`: the whole pipeline
infer          `infer`: scores data with a checkpoint of a run, or a registered version
workloads      `workloads`: the shipped workloads, and the settings of one

runs           `runs`: list runs, show, resume, stop, extend, fork and delete one
inspect        `ls`, `show` and `verify`: the content of a storage, a run, a checkpoint
diff           `diff`: two runs or two checkpoints compared
export         `export`: a checkpoint's weights as one plain file
prune          `prune`: deletes what no rule and no pin keeps, and dead attempts' files
champions      `champions`, `rollback` and `approve`: which version serves, and why
verify_resume  `verify-resume`: a proof for one's own workload

mirror         `mirror`: brings MLflow up to date with a run folder
ui             `ui`: MLflow's and Prefect's pages for the runs of this machine
slots          `slots`: what holds the slots of the deployments at Prefect's server
automations    `automations`: creates or updates Prefect's automations from files
"""
