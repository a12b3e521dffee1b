"""The other side of `train_core.client.isolated`.

`python -m train_core.engine.tools.isolated_calls ERRAND ARGUMENTS`.

The result goes to stdout, and so does an error, described as JSON: the exit code tells them apart.
What a user's module prints goes to stderr.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import redirect_stdout

from train_core.described_errors import FAILED, describe


def settings_schema(workload: str) -> str:
    """The JSON schema of a workload's settings."""
    from train_core.loading import workload_class

    return json.dumps(workload_class(workload).Settings.model_json_schema())


def delete_tracking(run_url: str, tracking_uri: str) -> str:
    """Delete the MLflow runs and models that mirror the run at `run_url`."""
    from train_core.engine.tracking.runs import delete_runs

    delete_runs(run_url, tracking_uri)
    return ""


def unregistered_checkpoints(run_url: str, tracking_uri: str) -> str:
    """The checkpoints whose models in MLflow no registered version points to."""
    from train_core.engine.tracking.models.lookups import unregistered_checkpoints

    return json.dumps(unregistered_checkpoints(run_url, tracking_uri))


def mirror_run(run_url: str, tracking_uri: str) -> str:
    """Send MLflow what it lacks of the run at `run_url`; where it shows it."""
    from train_core.engine.tracking.catch_up import catch_up
    from train_core.storage.run_folder import RunFolder

    return catch_up(RunFolder.at(run_url), tracking_uri).model_dump_json()


def mirror_predictions(run_url: str, predictions_url: str, tracking_uri: str) -> str:
    """Show a batch inference in the MLflow run of the run at `run_url`."""
    from train_core.engine.tracking.batch_inference import show_batch_inference

    show_batch_inference(run_url, predictions_url, tracking_uri)
    return ""


def compare_checkpoints(url_a: str, url_b: str, *names: str) -> str:
    """What differs between checkpoints of the runs at these addresses, of A and B in turn."""
    from train_core.engine.tools.compare import compare_checkpoints
    from train_core.storage.run_folder import RunFolder

    a, b = RunFolder.at(url_a), RunFolder.at(url_b)
    pairs = zip(names[::2], names[1::2], strict=True)
    found = [compare_checkpoints(a, a.find(of_a), b, b.find(of_b)) for of_a, of_b in pairs]
    return json.dumps([one.model_dump(mode="json") for one in found])


def compare_runs(url_a: str, url_b: str) -> str:
    """The first that differs between the runs at these addresses."""
    from train_core.engine.tools.compare import compare_runs
    from train_core.storage.run_folder import RunFolder

    return compare_runs(RunFolder.at(url_a), RunFolder.at(url_b)).model_dump_json()


def export_weights(run_url: str, name: str, address: str) -> str:
    """Write a checkpoint's weights to the file at `address`; what it is."""
    import safetensors.torch

    from train_core.engine.checkpoint.reader import load_weights
    from train_core.results import ExportResult
    from train_core.storage.addresses import file_at
    from train_core.storage.objects.digests import digest_of
    from train_core.storage.run_folder import RunFolder

    folder = RunFolder.at(run_url)
    checkpoint = folder.find(name)
    weights = load_weights(folder.store, checkpoint)
    # Some readers of safetensors ask which framework wrote the file.
    data = safetensors.torch.save(weights, {"format": "pt"})
    store, key = file_at(address)
    store.write(key, data, durable=True)
    result = ExportResult(
        checkpoint=folder.store.uri(checkpoint.key),
        uri=store.uri(key),
        size_bytes=len(data),
        digest=digest_of(data),
        num_tensors=len(weights),
    )
    return result.model_dump_json()


ERRANDS: dict[str, Callable[..., str]] = {
    "settings_schema": settings_schema,
    "delete_tracking": delete_tracking,
    "unregistered_checkpoints": unregistered_checkpoints,
    "mirror_run": mirror_run,
    "mirror_predictions": mirror_predictions,
    "compare_checkpoints": compare_checkpoints,
    "compare_runs": compare_runs,
    "export_weights": export_weights,
}

if __name__ == "__main__":
    code = 0
    with redirect_stdout(sys.stderr):
        try:
            outcome = ERRANDS[sys.argv[1]](*sys.argv[2:])
        except Exception as error:  # noqa: BLE001 (the other process raises it)
            outcome, code = json.dumps(describe(sys.argv[1], error)), FAILED
    sys.stdout.write(outcome)
    sys.exit(code)
