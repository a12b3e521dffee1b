"""What `init_from` means when a run begins: a file, a checkpoint of a run, a model in MLflow."""

from __future__ import annotations

from train_core.errors import ConfigError
from train_core.storage.addresses import file_at, find_checkpoint
from train_core.storage.objects.digest_algorithm import new_digest
from train_core.storage.records.run_record import Origin

_MODELS = "models:/"
_FILE = ".safetensors"


def find_origin(what: str, storage: str, tracking_uri: str) -> Origin:
    """What `init_from` means now. Raises ConfigError if it means nothing.

    A run's name is looked up in `storage`, a registered model in the MLflow at `tracking_uri`.
    """
    if what.endswith(_FILE):
        store, key = file_at(what)
        read = new_digest()
        try:
            for chunk in store.chunks(key):
                read.update(chunk)
        except FileNotFoundError as error:
            raise ConfigError(f"init_from: {error}") from error
        return Origin(uri=store.uri(key), digest=read.hexdigest())
    digest = ""
    if what.startswith(_MODELS):
        if not tracking_uri:
            raise ConfigError(f"init_from {what!r} is a model in MLflow: give a tracking_uri")
        from train_core.tracking.mlflow.models.lookups import checkpoint_of_model

        what, digest = checkpoint_of_model(what, tracking_uri)
    folder, checkpoint = find_checkpoint(what, storage, prefer_best=True)
    if digest not in ("", checkpoint.digest):
        raise ConfigError(f"{what} is not the checkpoint that the registered model was made of")
    return Origin(uri=folder.store.uri(checkpoint.key), digest=checkpoint.digest)
