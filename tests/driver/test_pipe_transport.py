"""A call that goes through the pipe is the same whatever the encoding of the locale is."""

from __future__ import annotations

import io
import os
import subprocess
from pathlib import Path

import pytest

from train_core.client.carriers.pipe import Pipe
from train_core.driver.pipe_transport import PipeTransport
from train_core.errors import StageError
from train_core.results import CheckpointSummary
from train_core.stages import INFER
from train_core.storage.coordination.job_mailbox import Call

BEST = CheckpointSummary(
    name="step-00000001-a0001", uri="file:///runs/run", step=1, epoch=1, metrics={}
)


@pytest.mark.parametrize("source", ["猫/ß", "folder-\udce9"])
def test_a_call_arrives_as_it_was(source: str, tmp_path: Path) -> None:
    cat = subprocess.Popen(
        ["cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="iso-8859-1",
        errors="replace",
        start_new_session=True,
    )
    lines: list[str] = []
    arguments = INFER.arguments(checkpoint=BEST, source=source)
    reading, writing = os.pipe()
    pipe = Pipe(cat, os.fdopen(reading), str(tmp_path / "temporary"), lines.append)
    called = pipe.call(INFER, arguments)
    os.close(writing)
    pipe.end(30)
    with pytest.raises(StageError, match="ended"):
        called.result(30)
    ((name, call),) = PipeTransport(io.StringIO(lines[0] + "\n"), io.StringIO()).calls()
    assert (name, call) == ("0", Call(stage="infer", arguments=arguments.model_dump(mode="json")))
