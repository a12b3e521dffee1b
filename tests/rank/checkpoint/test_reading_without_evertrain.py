"""The page on checkpoints is true: its lines read one, with safetensors and json alone."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.rank.test_exact import CONFIG
from tests.rank.tiny import Tiny
from tests.ranks.processes import train
from train_core.loading import load_workload
from train_core.rank.checkpoint.reader import load_state
from train_core.rank.checkpoint.state import load_optimizer_state
from train_core.storage.records.journal import read_segments
from train_core.storage.run_folder import RunFolder

PAGE = (Path(__file__).parents[3] / "docs" / "checkpoints.md").read_text()


def kept() -> dict[str, Any]:
    """All that JSON has no word for."""
    return {
        "pair": (1, 2.5),
        "by number": {1: torch.arange(3), 2: {(3, "four"): None}},
        "looks like a mark": {"$tensor": "none", "$tuple": []},
        "no numbers": [math.inf, -math.inf, math.nan],
    }


class Keeping(Tiny):
    """Has a state of every kind."""

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"kept": kept()}


def spelled(value: Any) -> Any:
    """Equal for values that are of the same types and bits, in the same order."""
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), repr(value.tolist())]
    if isinstance(value, dict):
        return ["dict", [[spelled(key), spelled(item)] for key, item in value.items()]]
    if isinstance(value, list | tuple):
        return [type(value).__name__, [spelled(item) for item in value]]
    return repr(value)


def lines_of_the_page(folder: Path) -> str:
    """All pieces of Python of its chapter, as one program for this checkpoint."""
    (chapter,) = re.findall(r"\n## Reading one without evertrain\n(.*?)\n## ", PAGE, re.DOTALL)
    lines = chapter.splitlines(keepends=True)
    code = dedent("".join(line for line in lines if line.startswith("    ") or line == "\n"))
    assert "evertrain" not in code
    assert set(re.findall(r"^(?:from|import) (\w+)", code, re.MULTILINE)) == {
        *("json", "re", "pathlib", "torch", "safetensors", "blake3"),
    }
    named = "runs/demo-001/checkpoints/step-00000140-a0001"
    assert named in code
    return code.replace(named, str(folder))


@pytest.mark.promise("plain-files", "readable")
@pytest.mark.parametrize(
    ("change", "num_files"),
    [
        pytest.param({"workload": f"{__name__}:Keeping"}, 1, id="ddp"),
        pytest.param({"workload": "tests.rank.tiny:Backbone"}, 2, id="frozen"),
        pytest.param(
            {"workload": "tests.ranks.fsdp_rank:Smooth", "strategy": "fsdp"},
            2,
            id="fsdp",
        ),
    ],
)
def test_the_lines_of_the_page_read_all_of_a_checkpoint(
    change: dict[str, Any], num_files: int, tmp_path: Path
) -> None:
    config = CONFIG | {"epochs": 1} | change
    train(str(tmp_path), "run", attempt=1, workers=2, config=config)
    folder = RunFolder(str(tmp_path), "run")
    newest = max(folder.checkpoints(), key=lambda c: c.name)
    path = Path(folder.url, newest.key)
    assert len(list(path.glob("model*.safetensors"))) == num_files
    workload = load_workload(config["workload"], {})
    model = workload.model()
    found: dict[str, Any] = {"model": model, "optimizer": workload.optimizer(model)}
    exec(lines_of_the_page(path), found)

    expected = load_state(folder.store, newest)
    assert spelled(found["state"]) == spelled(expected)
    assert spelled(found["state"]["workload"].get("kept", kept())) == spelled(kept())
    assert found["state"]["progress"]["step"] == newest.manifest.step == 5
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, expected["model"][name])
    other = workload.model()
    optimizer = workload.optimizer(other)
    load_optimizer_state(other, optimizer, expected["optimizer"])
    assert optimizer.state_dict()["state"]
    assert spelled(found["optimizer"].state_dict()) == spelled(optimizer.state_dict())
    of_evertrain = read_segments(folder.store, newest.manifest.journal)
    assert found["journal"] == [entry.model_dump() for entry in of_evertrain]
    assert [entry["step"] for entry in found["journal"]] == [1, 2, 3, 4, 5, 5]


@pytest.mark.promise("readable")
def test_the_index_says_which_of_the_optimizers_files_has_which_tensor(tmp_path: Path) -> None:
    train(str(tmp_path), "run", attempt=1, workers=2, config=CONFIG | {"epochs": 1})
    folder = RunFolder(str(tmp_path), "run")
    (*_, newest) = folder.checkpoints()
    path = Path(folder.url, newest.key)
    index = json.loads((path / "optimizer.safetensors.index.json").read_text())
    files = {file.name: load_file(file) for file in path.glob("optimizer-*.safetensors")}
    assert len(files) > 1
    assert index["weight_map"] == {name: file for file, has in files.items() for name in has}
    assert index["metadata"]["total_size"] == sum(
        tensor.nbytes for has in files.values() for tensor in has.values()
    )
    # state/<parameter>/<name>, for a parameter by its name in the module.
    assert "state/4.weight/exp_avg" in index["weight_map"]
