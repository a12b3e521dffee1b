"""The subcommands of `evertrain`, each a model of its arguments with a `cli_cmd`.

A new command: a model here, and a field in `flows/cli/app.py`.
"""
