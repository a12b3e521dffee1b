"""The benchmark of a GPU runs, in small, on a CPU; and without what a borrowed machine lacks."""

import gzip
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import psutil
import pytest

from benchmarks.gpu import saving, throughput
from tests.workloads.idx_files import format_idx

ROOT = Path(__file__).parents[2]
# What the machine of the benchmark does not have.
ABSENT = ("ray", "mlflow", "prefect", "pyarrow", "pandas", "rich", "s3fs", "sklearn")
PROGRAMS = ("benchmarks.gpu.__main__", "benchmarks.gpu.images", "benchmarks.peers.torch_mnist")
WORKLOADS = ("benchmarks.gpu.workload", "train_core.workloads.mnist")


def write_idx(folder: Path) -> None:
    """MNIST's four files, packed, with random images."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for prefix, count in (("train", 5200), ("t10k", 64)):
        images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = rng.integers(0, 10, count, dtype=np.uint8)
        for name, data in (("images-idx3", images), ("labels-idx1", labels)):
            packed = gzip.compress(format_idx(data), compresslevel=1)
            (folder / f"{prefix}-{name}-ubyte.gz").write_bytes(packed)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_quick_run_on_a_cpu_has_every_figure_and_cleans_up(tmp_path: Path) -> None:
    storage = tmp_path / "storage"
    storage.mkdir()
    write_idx(tmp_path / "mnist")
    options = ["--data", str(tmp_path / "mnist"), "--storage", str(storage)]
    # Short: the paths of sockets lie below it.
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="b") as folder:
        with subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--quick", *options],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "TMPDIR": folder},
            start_new_session=True,
        ) as process:
            try:
                shown, _ = process.communicate()
                listed = [str(one.info["cmdline"]) for one in psutil.process_iter(["cmdline"])]
                assert not [command for command in listed if str(tmp_path) in command]
            finally:
                # If the test fails, its contenders are left.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == 0
        assert not list(Path(folder).glob("bench-*"))
    figures = json.loads(shown.splitlines()[-1])
    measured = {key: figures[key] for key in (*throughput.KEYS, *saving.KEYS)}
    # Nothing is divided by a cost that is lost in noise, and it is said.
    if "cost nothing that could be measured" in shown:
        assert measured.pop("torch_save_vs_ours") is measured.pop("dcp_async_vs_ours") is None
    assert all(math.isfinite(value) for value in measured.values()), shown
    # A checkpoint of so small a model is lost in the noise of a window, which may be negative.
    assert all(figures[key] > 0 for key in (*throughput.KEYS, "gpu_call_vs_copy")), shown
    assert not list(storage.iterdir())


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("transformers") is not None,
    reason="torchmetrics imports Transformers where they are installed, which import sklearn",
)
def test_it_is_imported_without_ray_prefect_and_mlflow() -> None:
    program = f"""
        import importlib, sys

        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in {ABSENT}:
                    raise ModuleNotFoundError(f"no module {{name}}", name=name)

        sys.meta_path.insert(0, Absent())
        for module in {PROGRAMS + WORKLOADS}:
            importlib.import_module(module)
        assert not set({ABSENT}) & sys.modules.keys()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, cwd=ROOT)
