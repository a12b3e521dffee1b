"""What is installed: three packages, as files, whose names no user's project has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests import commands
from tests.flows.conftest import ROOT, isolated

PACKAGES = {"evertrain_flows", "evertrain_tasks", "train_core"}
_BUILD = """
import sys
from setuptools import build_meta

print(getattr(build_meta, sys.argv[1])(sys.argv[2]))
"""


def built(kind: str, source: Path, folder: Path) -> Path:
    """The file that the build backend makes of a folder, as pip and build ask it to."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-c", _BUILD, f"build_{kind}", str(folder)]
    done = commands.succeed(command, cwd=source)
    return folder / done.stdout.splitlines()[-1]


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what is built: a build leaves files beside its sources."""
    copy = tmp_path / "checkout"
    copy.mkdir()
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("flows", "tasks", "train_core", "importable"):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    return copy


@pytest.mark.slow
@pytest.mark.promise("own-names")
@pytest.mark.timeout(300)
def test_a_wheel_has_the_three_packages_and_runs(checkout: Path, tmp_path: Path) -> None:
    wheel = built("wheel", checkout, tmp_path / "wheel")
    files = contents(wheel)
    tops = {name.partition("/")[0] for name in files}
    assert {top for top in tops if not top.endswith(".dist-info")} == PACKAGES
    sources = {
        f"{link.name}/{path.relative_to(link)}": path.read_bytes()
        for link in (ROOT / "importable").iterdir()
        if link.name in PACKAGES
        for path in link.rglob("*")
        if path.suffix in (".py", ".txt")
    }
    assert {name: files[name] for name in files if name.partition("/")[0] in PACKAGES} == sources

    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(installed)
    home = tmp_path / "home"
    home.mkdir()
    environment = {**isolated(home), "PYTHONPATH": str(installed)}
    where = "import train_core.loading; print(train_core.loading.__file__)"
    found = subprocess.check_output([sys.executable, "-P", "-c", where], env=environment, text=True)
    assert found == f"{installed}{os.sep}train_core{os.sep}loading.py\n"
    for arguments in (["--help"], ["workloads", "train_core.workloads.digits:Digits"]):
        commands.succeed(
            [sys.executable, "-P", "-m", "evertrain_flows.cli", *arguments],
            cwd=home,
            env=environment,
        )


@pytest.mark.slow
def test_a_source_distribution_makes_the_same_wheel(checkout: Path, tmp_path: Path) -> None:
    archive = built("sdist", checkout, tmp_path / "sdist")
    shutil.unpack_archive(archive, tmp_path / "unpacked", filter="data")
    (source,) = (tmp_path / "unpacked").iterdir()
    assert not [path for path in source.rglob("*") if path.is_symlink()]
    made = contents(built("wheel", source, tmp_path / "of-sdist"))
    assert made == contents(built("wheel", checkout, tmp_path / "wheel"))


def test_an_editable_install_is_a_plain_path() -> None:
    folder = ROOT / "importable"
    links = {link.name: os.readlink(link) for link in folder.iterdir() if link.is_symlink()}
    assert links == {
        "evertrain_flows": "../flows",
        "evertrain_tasks": "../tasks",
        "train_core": "../train_core",
    }
    site = Path(sys.prefix, f"lib/python{sys.version_info.major}.{sys.version_info.minor}")
    paths = [one.read_text() for one in (site / "site-packages").glob("*evertrain*.pth")]
    # A wheel that is installed has none.
    assert paths in ([f"{ROOT}/importable\n"], [])
