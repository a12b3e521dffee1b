"""Places on somebody else's Ray: a driver's workers get them, and it gives none of them back.

A trial of a search by Ray Tune has reserved what its workers need, on Tune's own Ray. The driver of
the trial's run joins that Ray, and places its workers there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from train_core.requests import LentPlaces

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup

_places: list[LentPlaces] = []
"""Of this process, which is a driver of one request: empty, or one."""


def use_lent(places: LentPlaces | None) -> None:
    """From here on this process has its Ray, and its workers' places, from these; None: its own."""
    _places[:] = [places] if places else []


def lent_places() -> LentPlaces | None:
    """What this process was lent; None: nothing, it has a Ray of its own, or a cluster's."""
    return _places[0] if _places else None


def lent_group() -> PlacementGroup | None:
    """The placement group whose bundles are the workers' places, in their order."""
    if not _places:
        return None
    import ray
    from ray.util.placement_group import PlacementGroup

    return PlacementGroup(ray.PlacementGroupID(bytes.fromhex(_places[0].placement_group)))


def runtime_env(places: LentPlaces, own: dict[str, Any], search_path: str) -> dict[str, Any]:
    """The runtime environment of the driver's workers: the lender's, and what is asked for.

    The workers look for modules where the driver does, by `search_path`, which they read as they
    import `train_core`: before the user's code is imported.
    """
    lenders = places.runtime_env
    variables = {
        **(lenders.get("env_vars") or {}),
        "EVERTRAIN_PATH": search_path,
        **(own.get("env_vars") or {}),
    }
    hook = {"worker_process_setup_hook": "train_core.search_path.imported"}
    return {**hook, **lenders, **own, "env_vars": variables}
