"""No entry of a checkpoint is idle: without it, or with an older value, the tests turn red.

The entries are those of a real checkpoint, taken in the middle of an epoch; with strategy fsdp it
is one of two ranks, which one rank goes on from. Where one is removed the run has to be refused,
with its name, or to end with other bits, which is what the tests of exactness look at. Where one
has the value that it had after the first step nothing is missing: only the bits can tell. What
goes unnoticed is listed here, with its reason.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load, save

from tests.marks import slow
from tests.rank.alone import run
from tests.rank.digests import digest_of_training
from tests.rank.test_exact import EVERYTHING, STOPS_EARLY, TABLE
from tests.ranks.processes import train
from train_core.policy.checkpoints.layout import part_of
from train_core.storage.records.manifest import FileEntry
from train_core.storage.records.names import MANIFEST_JSON, STATE_JSON
from train_core.storage.run_folder import RunFolder

# Stops after the third of four epochs, as no loss is so much better than the first: in the middle
# of the third, one bad validation is remembered.
STOPS = {"epochs": 4, "early_stopping_patience": 2, "data_workers": 0}
ONE_CHECKPOINT = {"checkpoint_every_steps": 99, "checkpoint_every_epochs": 0}
KINDS = {
    kind: config | STOPS | ONE_CHECKPOINT
    for kind, config in zip(("adamw", "momentum-stream"), EVERYTHING.values(), strict=True)
}
FSDP = {"workload": "tests.ranks.fsdp_rank:Smooth", "strategy": "fsdp"}
KINDS["fsdp"] = TABLE | STOPS_EARLY | STOPS | ONE_CHECKPOINT | FSDP
CASES = [
    *(("adamw", part) for part in ("optimizer", "progress")),
    *(slow("adamw", part) for part in ("model", "schedule", "workload")),
    ("momentum-stream", "streams"),
    slow("momentum-stream", "optimizer"),
    # Its tensors are others', in rows; what is no tensor is as it is without it.
    *(slow("fsdp", part) for part in ("model", "optimizer", "workload")),
]

GROUP = "optimizer/param_groups/0"
REPORTED = "reported only, and measured again"
TORCHS = "set by torch where it is missing, to the default that this optimizer has"
CONSTANT = "made anew from the configuration"
REMOVED_UNNOTICED = {
    f"{GROUP}/amsgrad": TORCHS,
    f"{GROUP}/capturable": TORCHS,
    f"{GROUP}/decoupled_weight_decay": TORCHS,
    f"{GROUP}/differentiable": TORCHS,
    f"{GROUP}/foreach": TORCHS,
    f"{GROUP}/fused": TORCHS,
    f"{GROUP}/maximize": TORCHS,
    f"{GROUP}/nesterov": TORCHS,
    "schedule/total_steps": CONSTANT,
    "schedule/_schedule_phases": CONSTANT,
    "schedule/_anneal_func_type": CONSTANT,
    "schedule/cycle_momentum": CONSTANT,
    "schedule/use_beta1": CONSTANT,
    "schedule/base_lrs": CONSTANT,
    "schedule/_is_initial": "set while torch makes a schedule, and never between two steps",
    "schedule/_get_lr_called_within_step": "set within a step of the schedule only",
    "schedule/_last_lr": "reported only, and written by the next step",
    "schedule/_last_lr/0": "reported only, and written by the next step",
    "progress/metrics/train/loss": REPORTED,
    "progress/metrics/train/learning_rate": REPORTED,
    "progress/metrics/train/grad_norm": REPORTED,
    "progress/metrics/train/epoch_loss": REPORTED,
    "progress/metrics/validation/loss": REPORTED,
    "progress/metrics/validation/accuracy": REPORTED,
    "progress/metrics/validation/count": REPORTED,
}
NOTICED_BY_SGD = {f"{GROUP}/fused"}
OLDER_UNNOTICED = {
    "schedule/_last_lr/0": "reported only, and written by the next step",
    "progress/metrics/train/loss": REPORTED,
    "progress/metrics/train/learning_rate": REPORTED,
    "progress/metrics/train/grad_norm": REPORTED,
    "progress/validated_step": "says of the last step alone whether it was validated",
    "progress/elapsed_s": "is a time",
}
# What there is from the first validation on only.
NOT_YET = {
    f"progress/metrics/{name}"
    for name in ("train/epoch_loss", "validation/loss", "validation/accuracy", "validation/count")
}
NEVER_REFUSED = "an older value is as good as another"

Place = tuple[Any, ...]


class Interrupted:
    """A run's only checkpoint, whose files are changed before the run goes on."""

    def __init__(self, home: Path, kind: str) -> None:
        self._home, self._config = home, KINDS[kind]
        self.files = self._files_of(self._trained("interrupted", max_steps=12))
        self.older = self._files_of(self._trained("older", max_steps=1))
        if kind == "fsdp":
            # One rank ends otherwise than two do: it is compared with what it makes of all entries.
            shutil.copytree(home / "interrupted", home / "undisturbed")
            undisturbed = RunFolder(str(home), "undisturbed")
            run(undisturbed, attempt=2, **self._config)
        else:
            undisturbed = self._trained("undisturbed")
        assert undisturbed.checkpoints()[-1].manifest.stopped_by == "early_stopping"
        self._digest = digest_of_training(undisturbed)
        assert self.goes_unnoticed({}, "")

    def goes_unnoticed(self, changed: dict[str, bytes], entry: str, *, without: str = "") -> bool:
        """Whether the run ends as if undisturbed with these files, and without that one.

        What it is refused with has to name the entry.
        """
        shutil.rmtree(self._home / "again", ignore_errors=True)
        shutil.copytree(self._home / "interrupted", self._home / "again")
        folder = RunFolder(str(self._home), "again")
        (only,) = folder.checkpoints()
        files = {name: data for name, data in (self.files | changed).items() if name != without}
        for name, data in files.items():
            folder.store.write(f"{only.key}/{name}", data)
        entries = tuple(FileEntry.of(name, data) for name, data in files.items())
        manifest = only.manifest.model_copy(update={"files": entries})
        folder.store.write(f"{only.key}/{MANIFEST_JSON}", manifest.to_json())
        try:
            run(folder, attempt=2, **self._config)
        except (KeyError, ValueError, RuntimeError) as error:
            refused = str(error)
        else:
            refused = ""
        assert not refused or entry in refused, f"{entry}: {refused}"
        return not refused and digest_of_training(folder) == self._digest

    def _trained(self, name: str, **change: Any) -> RunFolder:
        folder = RunFolder(str(self._home), name)
        config = self._config | change
        if config.get("strategy") == "fsdp":
            train(folder.storage, name, attempt=1, workers=2, config=config)
        else:
            run(folder, **config)
        return folder

    def _files_of(self, folder: RunFolder) -> dict[str, bytes]:
        (only,) = folder.checkpoints()
        return {e.name: folder.store.read(f"{only.key}/{e.name}") for e in only.manifest.files}


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Interrupted]:
    return cache(lambda kind: Interrupted(tmp_path_factory.mktemp(kind), kind))


def places(value: Any, above: Place) -> Iterator[Place]:
    """Where in the JSON something can be taken away, at any depth; a tuple is one value."""
    yield above
    if isinstance(value, dict) and not value.keys() & {"$tensor", "$tuple"}:
        for key, inner in value.items():
            yield from places(inner, (*above, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from places(inner, (*above, index))


def at(value: Any, place: Place) -> Any:
    for key in place:
        value = value[key]
    return value


def spelled(place: Place) -> str:
    return "/".join(map(str, place))


@pytest.mark.promise("all-state")
@pytest.mark.parametrize(("kind", "part"), CASES)
def test_without_any_entry_the_run_is_refused_or_ends_otherwise(
    interrupted: Callable[[str], Interrupted], kind: str, part: str
) -> None:
    run_, unnoticed, tried = interrupted(kind), set(), set()
    state = json.loads(run_.files[STATE_JSON])
    for place in places(state[part], (part,)):
        tried.add(spelled(place))
        changed = deepcopy(state)
        del at(changed, place[:-1])[place[-1]]
        # What is missing in a list is told by what it lists.
        name = "" if isinstance(place[-1], int) else place[-1]
        if run_.goes_unnoticed({STATE_JSON: json.dumps(changed).encode()}, name):
            unnoticed.add(spelled(place))
    noticed = NOTICED_BY_SGD if kind.startswith("momentum") else set()
    assert unnoticed == tried & REMOVED_UNNOTICED.keys() - noticed


@pytest.mark.promise("all-state")
@pytest.mark.parametrize(("kind", "part"), CASES)
def test_with_an_older_value_of_any_entry_the_run_ends_otherwise(
    interrupted: Callable[[str], Interrupted], kind: str, part: str
) -> None:
    run_, unnoticed, tried = interrupted(kind), set(), set()
    state, older = (json.loads(files[STATE_JSON]) for files in (run_.files, run_.older))
    for place in places(state[part], (part,)):
        value = at(state, place)
        if isinstance(value, dict | list) and "$tuple" not in value:
            continue  # its entries come one by one
        if spelled(place) in NOT_YET or value == at(older, place):
            continue
        tried.add(spelled(place))
        changed = deepcopy(state)
        at(changed, place[:-1])[place[-1]] = at(older, place)
        if run_.goes_unnoticed({STATE_JSON: json.dumps(changed).encode()}, NEVER_REFUSED):
            unnoticed.add(spelled(place))
    for file in (name for name in run_.files if part_of(name) == part):
        data, old = run_.files[file], load(run_.older[file])
        for name in load(data):
            changed_file = save(load(data) | {name: old[name]}, metadata_of(data))
            if run_.goes_unnoticed({file: changed_file}, NEVER_REFUSED):
                unnoticed.add(f"{part}/{name}")
    assert unnoticed == tried & OLDER_UNNOTICED.keys()


@pytest.mark.parametrize("kind", [slow(kind) if kind == "fsdp" else kind for kind in KINDS])
def test_without_any_tensor_or_file_the_run_is_refused(
    interrupted: Callable[[str], Interrupted], kind: str
) -> None:
    run_ = interrupted(kind)
    for name, data in run_.files.items():
        # The index is for programs that load the weights without evertrain.
        is_index = name.endswith(".index.json")
        missing = name if name == STATE_JSON else "the tensor"
        assert run_.goes_unnoticed({}, missing, without=name) == is_index
        for tensor in load(data) if part_of(name) else ():
            kept = {other: value for other, value in load(data).items() if other != tensor}
            assert not run_.goes_unnoticed(
                {name: save(kept, metadata_of(data))}, f"{part_of(name)}/{tensor}"
            )


def metadata_of(data: bytes) -> dict[str, str]:
    """What a safetensors file says of itself, such as which rows it has."""
    size = int.from_bytes(data[:8], "little")
    found: dict[str, str] = json.loads(data[8 : 8 + size])["__metadata__"]
    return found
