"""The command `evertrain`."""
