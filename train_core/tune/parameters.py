"""The parameters of a trial's run: those of the search, and in their place the trial's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from train_core.config import TrainConfig
from train_core.config.json_text import object_of
from train_core.errors import ConfigError
from train_core.policy.checkpoints.retention import RetentionOptions

_NESTED = ("settings", "train_loop_config", "runtime_env")
"""Parameters that are objects: a trial may have other values of a part of one."""


def of_trial(asked: Mapping[str, Any], trial: Mapping[str, Any]) -> TrainConfig:
    """The configuration of a trial's run.

    A name with dots, `settings.learning_rate`, is a part of an object, at any depth; so is a part
    of a dictionary. What Tune keeps of its checkpoints is not the run's matter, so the run keeps
    all of its own, unless a parameter says otherwise: a trial that is paused, or copied, needs
    them. On Tune's Ray a worker has the GPUs that are asked for, and none by default. Raises
    ConfigError for the first parameter that is unknown or wrong.
    """
    found = dict(asked)
    for name, value in trial.items():
        outer, *inner = name.split(".")
        if outer in _NESTED and (inner or isinstance(value, Mapping)):
            found[outer] = _with(_object(outer, found.get(outer)), inner, value)
        else:
            found[name] = value
    if not found.get("trainer"):
        # What a trainer says of GPUs is known to its driver, which compares it with the places.
        found.setdefault("gpus_per_worker", 0)
    if not any(name in found for name in RetentionOptions.model_fields):
        found["keep_every_steps"] = 1
    config = TrainConfig.of(**{name: _plain(value) for name, value in found.items()})
    if config.ray_address != "local":
        raise ConfigError(
            f"ray_address: a trial trains on the Ray of its search: leave {config.ray_address!r} "
            "out, and give the address to ray.init before the search"
        )
    if config.min_workers:
        raise ConfigError(
            "min_workers: a trial has as many workers as Tune has reserved places for. Give "
            "num_workers alone"
        )
    return config


def places_of(config: TrainConfig) -> list[dict[str, float]]:
    """What a trial reserves: nothing for its own process, and a bundle for each worker."""
    each = {"CPU": config.cpus_per_worker, "GPU": config.gpus_per_worker or 0}
    bundle = {name: amount for name, amount in each.items() if amount}
    return [{}, *([bundle] * config.num_workers)]


def _object(name: str, value: object) -> dict[str, Any]:
    """The parameter's value, which may be a text of JSON. Raises ConfigError."""
    try:
        found = object_of(value or {})
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from error
    if not isinstance(found, Mapping):
        raise ConfigError(f"{name} is a {type(found).__name__}: give an object of names and values")
    return dict(found)


def _with(before: object, path: Sequence[str], value: Any) -> Any:
    """What was there with the value at the path; objects within objects are merged."""
    if path:
        value = {path[0]: _with({}, path[1:], value)}
    if not isinstance(value, Mapping):
        return value
    changed = dict(before) if isinstance(before, Mapping) else {}
    return changed | {name: _with(changed.get(name), [], one) for name, one in value.items()}


def _plain(value: Any) -> Any:
    """Numbers of numpy, as some search algorithms give them, as Python's; also in objects."""
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    item = getattr(value, "item", None)
    return item() if item is not None and getattr(value, "shape", None) == () else value
