"""torchvision of another build than torch: what does not use its operators runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import commands
from train_core.search_path import environment

# What torchvision 0.28 does where its library is CUDA's and torch is not.
FOREIGN = """
from . import extension
import torch

@torch.library.register_fake("torchvision::nms")
def nms(dets, scores, iou_threshold):
    return dets

from . import transforms
"""


@pytest.fixture
def foreign_build(tmp_path: Path) -> Path:
    """A folder with a torchvision whose operators cannot be loaded."""
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text(FOREIGN)
    (package / "extension.py").write_text("")
    (package / "transforms.py").write_text("")
    # What torchmetrics imports.
    (package / "models.py").write_text("resnet50 = VGG16_Weights = vgg16 = None")
    (package / "ops.py").write_text("def __getattr__(name): return None")
    described = tmp_path / "torchvision-0.28.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: torchvision\nVersion: 0.28.0\n"
    )
    return tmp_path


def python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return commands.run(
        [sys.executable, "-c", code],
        env={**environment(), "PYTHONPATH": f"{folder}:{environment().get('PYTHONPATH', '')}"},
    )


@pytest.mark.slow
def test_torchmetrics_is_imported_beside_a_foreign_build(foreign_build: Path) -> None:
    without = python("import torchmetrics", foreign_build)
    assert "operator torchvision::nms does not exist" in without.stderr
    done = python(
        "import train_core, torchmetrics, torchvision, inspect;"
        "print(type(torchvision.__loader__).__name__, torchvision.transforms.__name__)",
        foreign_build,
    )
    assert done.stdout.split() == ["SourceFileLoader", "torchvision.transforms"], done.stderr


def test_any_other_failure_of_its_import_is_raised(foreign_build: Path) -> None:
    (foreign_build / "torchvision" / "__init__.py").write_text("raise RuntimeError('broken')")
    done = python("import train_core, torchvision", foreign_build)
    assert done.returncode
    assert "RuntimeError: broken" in done.stderr
