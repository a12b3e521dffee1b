"""Which code a run was begun with is recorded, as far as it can be known."""

from __future__ import annotations

import json
import sys
import uuid
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests import commands
from train_core.config import TrainConfig
from train_core.driver.preparing.preflight import check, new_record
from train_core.rank.data.recorded_workload import with_monitor
from train_core.requests import DriverRequest
from train_core.storage.objects.digest_algorithm import digest_of
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import create_run
from train_core.tools.provenance import code_of

SOURCE = "from tests.rank.tiny import Tiny as Mine  # noqa: F401\n\nclass Own(Mine): ...\n"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a workload that nobody has imported yet."""
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / f"own_{uuid.uuid4().hex}.py"
    file.write_text(SOURCE)
    return file


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=Test", "-c", "user.email=test@example.org")
    done = commands.succeed(["git", *identity, *arguments], cwd=folder)
    return done.stdout.strip()


def test_the_source_file_and_the_commit_that_tracks_it_are_told(module: Path) -> None:
    git(module.parent, "init")
    git(module.parent, "add", module.name)
    git(module.parent, "commit", "-m", "mine")
    found = code_of(TrainConfig(workload=f"{module.stem}:Own"))
    assert found.modules[module.stem] == digest_of(SOURCE.encode())
    assert found.code["commit"] == git(module.parent, "rev-parse", "HEAD")


def test_a_repository_that_does_not_track_the_file_says_nothing_of_it(module: Path) -> None:
    git(module.parent, "init")
    git(module.parent, "commit", "--allow-empty", "-m", "others")
    assert code_of(TrainConfig(workload=f"{module.stem}:Own")).code.keys() <= {"evertrain"}


def test_without_git_all_else_is_told(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    found = code_of(TrainConfig(workload=f"{module.stem}:Own"))
    assert found.modules[module.stem] == digest_of(SOURCE.encode())
    assert "commit" not in found.code


def project(folder: Path, files: dict[str, str]) -> str:
    """Write a project's files, each under a name of this test's own in place of PROJECT."""
    own = f"project_{uuid.uuid4().hex}"
    for name, text in files.items():
        file = folder / name.replace("PROJECT", own)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace("PROJECT", own))
    return own


# A package, with the workload in PROJECT.work, and a module beside it.
FILES = {
    "PROJECT/__init__.py": "",
    "PROJECT/work.py": (
        "from tests.rank.tiny import Tiny\n"
        "from . import losses\n"
        "from .models.net import WIDTH\n"
        "import PROJECT_beside\n"
        "try:\n    import no_such_module\nexcept ImportError:\n    pass\n"
        "class Own(Tiny):\n"
        "    def late(self):\n"
        "        from PROJECT.late import LATE\n"
    ),
    "PROJECT/losses.py": "",
    "PROJECT/late.py": "LATE = 1\n",
    # No __init__.py: a namespace package.
    "PROJECT/models/net.py": "from PROJECT.models import deep\nWIDTH = 16\n",
    "PROJECT/models/deep.py": (
        "from importlib import import_module\n"
        "import_module('PROJECT.literal')\n"
        "import_module('PROJECT.' + 'by_name')\n"
    ),
    "PROJECT/literal.py": "",
    "PROJECT/by_name.py": "",
    "PROJECT/not_imported.py": "",
    "PROJECT_beside.py": "import torchmetrics\n",
}
IMPORTED = [
    *("PROJECT", "PROJECT.by_name", "PROJECT.late", "PROJECT.literal", "PROJECT.losses"),
    *("PROJECT.models.deep", "PROJECT.models.net", "PROJECT.work", "PROJECT_beside"),
]


def test_every_module_of_ones_own_that_the_workload_imports_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    own = project(tmp_path, FILES)
    config = TrainConfig(workload=f"{own}.work:Own")
    first = code_of(config)
    ours = {name: digest for name, digest in first.modules.items() if not name.startswith("tests.")}
    assert sorted(ours) == [name.replace("PROJECT", own) for name in IMPORTED]
    for name in IMPORTED:
        module = name.replace("PROJECT", own)
        parts = tmp_path.joinpath(*module.split("."))
        file = parts / "__init__.py" if parts.is_dir() else parts.with_suffix(".py")
        file.write_text(file.read_text() + "# another\n")
        now = code_of(config).modules
        assert {name for name in now if now[name] != first.modules[name]} == {module}
        first = code_of(config)


def test_nothing_is_imported_to_look_for_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    work = "from tests.rank.tiny import Tiny as Own\ndef late():\n    import PROJECT_late.part\n"
    files = {"PROJECT_work.py": work, "PROJECT_late/part.py": ""}
    own = project(tmp_path, files | {"PROJECT_late/__init__.py": "raise SystemExit('imported')\n"})
    found = code_of(TrainConfig(workload=f"{own}_work:Own")).modules
    assert {f"{own}_late", f"{own}_late.part"} <= found.keys()
    assert f"{own}_late" not in sys.modules


def test_versions_of_what_the_modules_import_and_of_what_that_requires_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    own = project(tmp_path, FILES)
    packages = code_of(TrainConfig(workload=f"{own}.work:Own")).packages
    for name in ("torchmetrics", "lightning-utilities"):
        assert packages[name] == metadata.version(name)
    assert not {"ray", "prefect", "pytest", "evertrain"} & packages.keys()


def installed(
    site: Path, own: str, *, source: dict[str, Any] | None = None, by: str = "pip"
) -> None:
    """Lay the package out as pip does; `source` says where it was installed from."""
    info = site / f"{own}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {own}\nVersion: 1.0\n")
    (info / "top_level.txt").write_text(own)
    (info / "INSTALLER").write_text(f"{by}\n")
    if source:
        (info / "direct_url.json").write_text(json.dumps(source))


@pytest.mark.parametrize(
    ("source", "by", "version"),
    [
        (None, "pip", "1.0"),
        ({"url": "file://PROJECT", "dir_info": {}}, "pip", None),
        ({"url": "file://PROJECT", "dir_info": {}}, "conda", "1.0"),
        ({"url": "file:///feedstock_root/gone", "dir_info": {}}, "pip", "1.0"),
        ({"url": "git+x", "vcs_info": {"commit_id": "c0ffee" * 6}}, "pip", "1.0 (c0ffeec0ffee)"),
    ],
    ids=["index", "folder", "conda", "folder of a build machine", "repository"],
)
def test_an_installed_library_counts_by_its_version_or_as_ones_own_if_a_folder_was_installed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: dict[str, Any] | None,
    by: str,
    version: str | None,
) -> None:
    site, work = tmp_path / "site-packages", tmp_path / "work"
    for folder in (site, work):
        monkeypatch.syspath_prepend(str(folder))
    library = project(site, {"PROJECT/__init__.py": "from . import part\n", "PROJECT/part.py": ""})
    if source:
        source |= {"url": source["url"].replace("PROJECT", tmp_path.as_uri()[len("file://") :])}
    installed(site, library, source=source, by=by)
    text = f"from tests.rank.tiny import Tiny as Own\nimport {library}\n"
    own = project(work, {"PROJECT.py": text})
    found = code_of(TrainConfig(workload=f"{own}:Own"))
    assert found.packages.get(library.replace("_", "-")) == version
    assert (f"{library}.part" in found.modules) is (version is None)


def test_the_package_of_the_workload_is_ones_own_also_if_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site-packages"
    monkeypatch.syspath_prepend(str(site))
    own = project(site, FILES)
    installed(site, own)
    found = code_of(TrainConfig(workload=f"{own}.work:Own"))
    assert f"{own}.models.net" in found.modules


def test_a_module_of_pythons_that_a_library_loads_under_its_own_name_is_nobodys_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    own = project(
        tmp_path,
        {
            "PROJECT/__init__.py": "",
            "PROJECT/work.py": "import importlib.util, sys, zipfile\n"
            "from train_core.workloads.digits import Digits as Own\n"
            "spec = importlib.util.spec_from_file_location('overlay.zipfile', zipfile.__file__)\n"
            "sys.modules['overlay.zipfile'] = importlib.util.module_from_spec(spec)\n",
        },
    )
    found = code_of(TrainConfig(workload=f"{own}.work:Own"))
    monkeypatch.delitem(sys.modules, "overlay.zipfile")
    assert set(found.modules) == {own, f"{own}.work"}


@pytest.mark.promise("record")
def test_run_json_has_it(tmp_path: Path) -> None:
    config = TrainConfig(workload="tests.rank.tiny:Tiny", batch_size=32, gpus_per_worker=0)
    request = DriverRequest(storage=str(tmp_path), run="run", config=with_monitor(config))
    folder = RunFolder(str(tmp_path), "run")
    checked = check(folder, request)
    create_run(folder, new_record(request, config, checked.datasets))
    tiny = Path(__file__).parents[1] / "rank" / "tiny.py"
    record = folder.record()
    assert record.modules["tests.rank.tiny"] == digest_of(tiny.read_bytes())
    assert record.packages["torch"] == metadata.version("torch")
