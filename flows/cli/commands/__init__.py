"""The subcommands of `evertrain`, each a model of its arguments with a `cli_cmd`."""
