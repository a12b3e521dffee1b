"""A user's own modules, and the installed packages that they import.

Both are found in the text of the modules: nothing is imported for it.
"""

from __future__ import annotations

import ast
import json
import sys
import sysconfig
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from importlib.machinery import ModuleSpec
from importlib.util import resolve_name
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

with suppress(ImportError):
    # It adds a finder of distributions that all look-ups ask. While another thread imports it, that
    # finder is not ready: this import waits for the other one.
    import importlib_metadata  # noqa: F401 (as above)

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from train_core.loading import modules_behind

_OURS = ("train_core", "evertrain_flows", "evertrain_tasks")
"""evertrain's own packages: its version stands for them."""
_COMMIT_CHARS = 12
_PYTHONS = Path(sysconfig.get_path("stdlib"))


@dataclass(frozen=True)
class OwnCode:
    """What code of a user's consists of."""

    modules: dict[str, bytes] = field(default_factory=dict)
    """The content of each module's file, by the module's name."""
    installed: set[str] = field(default_factory=set)
    """The first names of the installed packages that these modules import."""


def own_code_of(named: Iterable[str], *, only_loaded: bool = False) -> OwnCode:
    """The modules of what is named as `package.module:Name`, and all of the user's own behind them.

    These are the modules that they import, and those import in turn, and what came in as a named
    one was imported. An import inside a function counts, too, and so does `import_module` of a
    literal name; with `only_loaded` a module counts only if this process has loaded it. The
    standard library and evertrain are left out, unless a workload of evertrain's is named. The
    package of what is named is the user's own, even if it is installed.
    """
    named = list(named)
    roots = {name.partition(":")[0] for name in named}
    own_tops = {_top(name) for name in roots}
    behind = {module for name in named for module in modules_behind(name)}
    waiting = [*roots, *(name for name in behind if not is_installed(name))]
    found = OwnCode()
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        parent = name.rpartition(".")[0]
        is_other = _top(name) in _OURS or _top(name) in sys.stdlib_module_names
        if not name or name in seen or (is_other and name not in roots):
            continue
        seen.add(name)
        waiting.append(parent)
        if (only_loaded and name not in sys.modules) or (spec := _spec_of(name)) is None:
            continue
        if _top(name) not in own_tops and _is_installed(spec, _top(name)):
            found.installed.add(_top(name))
            continue
        content = _content_of(spec)
        if content is None:
            continue
        found.modules[name] = content
        if str(spec.origin).endswith(".py"):
            package = name if spec.submodule_search_locations is not None else parent
            waiting += _imports_in(content, package)
    return found


def is_installed(name: str) -> bool:
    """Whether the module comes from a package index, and not from a folder of the user's."""
    spec = _spec_of(name)
    return spec is not None and _is_installed(spec, _top(name))


def owners_of(names: Collection[str]) -> set[str]:
    """The distributions that have the packages of these first names."""
    if not set(names) <= _owners().keys():
        # One may have been installed, or come onto the path, since the last look.
        _owners.cache_clear()
    return {owner for name in names for owner in _owners().get(name, [])}


def versions_of(distributions: Iterable[str]) -> dict[str, str]:
    """The versions of the distributions and of all that they require, as far as installed."""
    found: dict[str, str] = {}
    waiting = [(name, "") for name in distributions]
    seen = {("evertrain", "")}
    while waiting:
        name, extra = waiting.pop()
        if (canonicalize_name(name), extra) in seen:
            continue
        seen.add((canonicalize_name(name), extra))
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        found[canonicalize_name(name)] = _version_of(distribution)
        for line in distribution.requires or []:
            with suppress(InvalidRequirement):
                needed = Requirement(line)
                if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                    waiting += [(needed.name, one) for one in ("", *needed.extras)]
    return dict(sorted(found.items()))


@cache
def _owners() -> Mapping[str, list[str]]:
    """The names of the distributions that have each module; looking takes half a second."""
    return metadata.packages_distributions()


def _version_of(distribution: metadata.Distribution) -> str:
    """The version; of one that was built from a repository with the commit, which says more."""
    commit = str(_source_of(distribution).get("vcs_info", {}).get("commit_id", ""))
    return f"{distribution.version} ({commit[:_COMMIT_CHARS]})" if commit else distribution.version


def _source_of(distribution: metadata.Distribution) -> Mapping[str, dict[str, object]]:
    """Where the distribution was installed from, if not from an index (`direct_url.json`)."""
    try:
        source = json.loads(distribution.read_text("direct_url.json") or "{}")
    except ValueError:
        return {}
    return source if isinstance(source, dict) else {}


def _top(name: str) -> str:
    return name.partition(".")[0]


def _is_installed(spec: ModuleSpec, top: str) -> bool:
    places = [Path(one) for one in (spec.origin, *(spec.submodule_search_locations or [])) if one]
    parts = {part for place in places for part in place.parts}
    if {"site-packages", "dist-packages"} & parts:
        return not _is_from_a_folder(top)
    # A library may load a module of Python's under a name of its own, as zipp does.
    return any(place.is_relative_to(_PYTHONS) for place in places)


@cache
def _is_from_a_folder(top: str) -> bool:
    """Whether it was installed as by `pip install .`: its code changes and its version stays.

    The libraries that conda installs name a folder, too: the one where they were built.
    """
    for distribution in map(metadata.distribution, owners_of([top])):
        source = _source_of(distribution)
        is_by_conda = (distribution.read_text("INSTALLER") or "").strip() == "conda"
        if "dir_info" in source and not is_by_conda:
            folder = Path(url2pathname(urlsplit(str(source.get("url"))).path))
            if folder.is_dir():
                return True
    return False


def _spec_of(name: str) -> ModuleSpec | None:
    """Where the module is. importlib's `find_spec` would import the packages above it."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    if isinstance(spec, ModuleSpec):
        return spec
    above, path = name.rpartition(".")[0], None
    if above:
        package = _spec_of(above)
        path = package.submodule_search_locations if package else None
        if path is None:
            return None
    for finder in sys.meta_path:
        # A finder of somebody else's may raise anything for a name that is not its own.
        with suppress(Exception):
            if found := finder.find_spec(name, path):
                return found
    return None


def _content_of(spec: ModuleSpec) -> bytes | None:
    """The content of the module's file; None of a folder without `__init__.py`."""
    if not spec.has_location or not spec.origin:
        return None
    try:
        return Path(spec.origin).read_bytes()
    except OSError:
        # In a zip file, for example.
        with suppress(Exception):
            return bytes(spec.loader.get_data(spec.origin))  # type: ignore[union-attr]  # or no content
    return None


def _imports_in(source: bytes, package: str) -> Iterator[str]:
    """The names that the source of a module of `package` imports; a name may be no module's."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                base = _resolved("." * level + (module or ""), package)
                yield base
                yield from (f"{base}.{alias.name}" for alias in names if base)
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__")
                | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield _resolved(name, package)


def _resolved(name: str, package: str) -> str:
    """The absolute name; empty if there is none."""
    with suppress(ImportError):
        return resolve_name(name, package)
    return ""
