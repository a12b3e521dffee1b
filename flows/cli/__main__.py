"""`python -m flows.cli`."""

from flows.cli.app import command

if __name__ == "__main__":
    command()
