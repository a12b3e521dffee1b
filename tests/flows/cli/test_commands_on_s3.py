"""The commands that look at run folders and change them, on a real S3 server."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from evertrain_flows.cli.app import main
from tests.rank.alone import run
from train_core.storage.objects.store import Store
from train_core.storage.records.names import MODEL_FILE
from train_core.storage.run_folder import RunFolder

pytestmark = pytest.mark.s3


@pytest.fixture
def folder(object_store: str) -> RunFolder:
    """A run with checkpoints of the steps 2, 4 and 5."""
    folder = RunFolder(f"{object_store}/{uuid.uuid4().hex}", "run")
    run(folder, checkpoint_every_steps=2, checkpoint_backpressure="wait", keep_last=9)
    return folder


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_a_run_is_looked_at_pruned_and_exported(
    folder: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [str(one.name) for one in folder.checkpoints()]
    assert [row["run"] for row in printed(capsys, "ls", folder.storage)] == ["run"]
    assert [row["checkpoint"] for row in printed(capsys, "ls", folder.url)] == names
    assert printed(capsys, "show", folder.url)["name"] == "run"
    assert printed(capsys, "show", f"{folder.url}/{names[0]}")["step"] == 2
    verified = {row["what"]: row["verdict"] for row in printed(capsys, "verify", folder.url)}
    assert verified == dict.fromkeys(["run.json", *names], "good")

    first = f"{folder.url}/{names[0]}"
    assert printed(capsys, "diff", first, first)["same"]
    there, here = f"{folder.storage}/weights.safetensors", tmp_path / MODEL_FILE
    exported = printed(capsys, "export", first, there)
    assert printed(capsys, "export", first, str(here))["digest"] == exported["digest"]
    assert Store(folder.storage).read("weights.safetensors") == here.read_bytes()
    assert len(load_file(here)) == exported["num_tensors"]

    rows = printed(capsys, "prune", folder.url, "--keep-last", "1")
    assert [one.name.step for one in folder.checkpoints()] == [5]
    assert {row["what"] for row in rows if row["verdict"] != "stays"} >= set(names[:2])


def test_an_altered_byte_is_found(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    newest = folder.checkpoints()[-1]
    key = f"{newest.key}/{MODEL_FILE}"
    data = bytearray(folder.store.read(key))
    data[-1] ^= 1
    folder.store.write(key, bytes(data))
    with pytest.raises(SystemExit, match="1"):
        main(["verify", folder.url])
    assert "1 of 4 parts" in capsys.readouterr().err
    assert main(["diff", folder.url, folder.url]) == 2
    assert f"{newest.name}/{MODEL_FILE}" in capsys.readouterr().err
