"""The page on checkpoints is true: its lines read one, with safetensors and json alone."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch

from tests.engine.processes import train
from tests.engine.test_exact import CONFIG
from train_core.engine.checkpoint_files import load_weights
from train_core.storage.run_folder import RunFolder
from train_core.workload import load_workload

PAGE = (Path(__file__).parents[2] / "docs" / "checkpoints.md").read_text()


@pytest.mark.parametrize(
    ("change", "num_files"),
    [
        pytest.param({}, 1, id="ddp"),
        pytest.param({"workload": "tests.engine.tiny:Backbone"}, 2, id="frozen"),
        pytest.param(
            {"workload": "tests.engine.fsdp_rank:Smooth", "strategy": "fsdp"}, 2, id="fsdp"
        ),
    ],
)
def test_the_lines_of_the_page_read_a_checkpoint(
    change: dict[str, Any], num_files: int, tmp_path: Path
) -> None:
    config = CONFIG | {"epochs": 1} | change
    train(str(tmp_path), "run", attempt=1, workers=2, config=config)
    folder = RunFolder(str(tmp_path), "run")
    newest = max(folder.checkpoints(), key=lambda c: c.name)
    path = Path(folder.url, newest.key)
    assert len(list(path.glob("model*.safetensors"))) == num_files
    (parts,) = re.findall(
        r"\n\n(    import json\n.*?)\n\nA test runs.*?\n\n(    from blake3.*?)\n\nWithout",
        PAGE,
        re.DOTALL,
    )
    code = "\n".join(map(dedent, parts)).replace(
        "runs/demo-001/checkpoints/step-00000140-a0001", str(path)
    )
    assert "evertrain" not in code
    model = load_workload(config["workload"], {}).model()
    found: dict[str, Any] = {"model": model}
    exec(code, found)
    expected = load_weights(folder.store, newest)
    assert found["weights"].keys() == expected.keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, expected[name])
    assert found["position"]["step"] == newest.manifest.step
