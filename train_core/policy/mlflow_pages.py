"""The addresses of MLflow's pages."""

from __future__ import annotations

from train_core.policy.logins import public_uri

_MACHINE_LEARNING = "?workflowType=machine_learning"
"""MLflow's pages show their view for GenAI to a browser that was told nothing else."""


def experiment_page(address: str, experiment_id: str) -> str:
    """The runs of an experiment, on the server at this address; its login is left out."""
    return f"{_experiments(address)}/{experiment_id}{_MACHINE_LEARNING}"


def run_page(address: str, experiment_id: str, run_id: str) -> str:
    """A run of an experiment. `address` as of `experiment_page`."""
    return f"{_experiments(address)}/{experiment_id}/runs/{run_id}{_MACHINE_LEARNING}"


def list_of_experiments(address: str) -> str:
    """The list of all experiments. `address` as of `experiment_page`."""
    return f"{_experiments(address)}{_MACHINE_LEARNING}"


def _experiments(address: str) -> str:
    return f"{public_uri(address).rstrip('/')}/#/experiments"
