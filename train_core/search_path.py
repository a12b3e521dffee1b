"""Where the processes that evertrain starts look for modules: the user's own folders come last.

A project may have a `secrets.py`, a `statistics.py` or a `prefect.py`. Python looks into the
current directory and the folders of PYTHONPATH before its own library, so numpy, Ray and Prefect
would import the project's. A process of ours is therefore started without either: the caller's
folders travel in EVERTRAIN_PATH, and are appended as the process imports `train_core`.

This file imports `os` and `sys` only, as Python has loaded them before any folder was looked into.
"""

from __future__ import annotations

import os
import sys

VARIABLE = "EVERTRAIN_PATH"
"""Folders with modules of the user's own, as in PYTHONPATH: they are looked into last."""
_SAFE_PATH = "PYTHONSAFEPATH"
_HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""The folder that this `train_core` was imported from."""


def put_users_folders_last() -> None:
    """Have this process look into the user's folders after all others, from now on."""
    library = os.path.dirname(os.__file__)
    zipped = f"python{sys.version_info.major}{sys.version_info.minor}.zip"
    pythons_own = {library, os.path.join(os.path.dirname(library), zipped)}
    count = next((at for at, folder in enumerate(sys.path) if folder in pythons_own), 0)
    first, sys.path[:count] = sys.path[:count], []
    if _HOME in first:
        sys.path.insert(0, _HOME)
    # A Python that is isolated (-E, -I) has not looked at PYTHONPATH.
    named = os.pathsep.join(os.environ.get(name, "") for name in ("PYTHONPATH", VARIABLE))
    for folder in (*first, *filter(None, named.split(os.pathsep))):
        if (whole := os.path.abspath(folder)) not in sys.path:
            sys.path.append(whole)


def find_in_current_directory() -> None:
    """Have this process look into the current directory, too, after all other folders."""
    if (folder := os.getcwd()) not in sys.path:
        sys.path.append(folder)


def imported() -> None:
    """Do nothing: who calls it by its name has imported `train_core`, and so looks as above."""


def environment(**variables: str) -> dict[str, str]:
    """The environment of a Python process that evertrain starts: this one's, and `variables`.

    The process finds evertrain where this one has found it, and the modules that this one finds.
    """
    folders = dict.fromkeys(os.path.abspath(folder) for folder in (*sys.path, os.getcwd()))
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    # Installed packages are found anyway, and some of them have names of the standard library.
    is_installed = os.path.basename(_HOME) in ("site-packages", "dist-packages")
    found_at = {} if is_installed else {"PYTHONPATH": _HOME}
    own = {VARIABLE: os.pathsep.join(folders), _SAFE_PATH: "1"}
    return {**inherited, **found_at, **own, **variables}


if VARIABLE in os.environ:
    # IMPORTANT: before anything else of train_core is imported.
    put_users_folders_last()
    # It is for this process, and not for the programs that the user's code starts. These have no
    # PYTHONPATH: its folders are in EVERTRAIN_PATH.
    os.environ.pop(_SAFE_PATH, None)
