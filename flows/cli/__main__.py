"""`python -m evertrain_flows.cli`."""

from evertrain_flows.cli.app import command

if __name__ == "__main__":
    command()
