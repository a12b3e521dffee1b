"""The subcommands of `evertrain`, each a model of its arguments with a `cli_cmd`.

A new command: a model here, a field in `flows/cli/app.py`, and its work as a function in
`train_core/client/`.
"""
