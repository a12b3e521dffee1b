"""New databases of Prefect's and MLflow's: copies of empty ones, which both take as their own."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from evertrain_flows.databases import (
    MLFLOW,
    PREFECT,
    create_prefect_database,
    create_tracking_database,
    empty_database,
)
from tests.flows.conftest import isolated

DEFAULT_EXPERIMENT = "SELECT name, artifact_location FROM experiments"
# The order of a table's constraints is by chance.
SCHEMA = (
    "SELECT version_num FROM alembic_version",
    "SELECT name, tbl_name, sql FROM sqlite_master WHERE type != 'table' ORDER BY 1",
    """SELECT made.name, col.name, col.type, col.[notnull], col.dflt_value, col.pk
    FROM sqlite_master AS made, pragma_table_info(made.name) AS col ORDER BY 1, 2""",
)
OF_PREFECT = ("prefect", "server", "database", "upgrade", "--yes")
OF_MLFLOW = ("mlflow", "experiments", "search")


@pytest.fixture(autouse=True)
def made_at_installation() -> None:
    for library in (PREFECT, MLFLOW):
        assert empty_database(library).exists(), "`make venv` has not made it"


def build(folder: Path, *command: str) -> None:
    """Have the library look into its database, which builds or upgrades it."""
    folder.mkdir(exist_ok=True)
    environment = isolated(folder) | {"MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"}
    home = {"PREFECT_HOME": str(folder)}
    subprocess.run([sys.executable, "-m", *command], cwd=folder, env=environment | home, check=True)


def read(path: Path, query: str) -> list[tuple[str, ...]]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute(query).fetchall()


def schema_of(path: Path) -> list[list[tuple[str, ...]]]:
    found = [read(path, query) for query in SCHEMA]
    assert all(found)
    return found


@pytest.mark.slow
def test_prefect_takes_the_copy_for_a_database_of_its_own(tmp_path: Path) -> None:
    copied, migrated = tmp_path / "copied", tmp_path / "migrated"
    create_prefect_database({"PREFECT_HOME": str(copied)})
    found = schema_of(copied / "prefect.db")
    for home in (copied, migrated):
        build(home, *OF_PREFECT)
    assert found == schema_of(copied / "prefect.db") == schema_of(migrated / "prefect.db")
    assert stat.S_IMODE(copied.stat().st_mode) == 0o700


@pytest.mark.slow
def test_mlflow_takes_the_copy_for_a_database_of_its_own(tmp_path: Path) -> None:
    copied, migrated = tmp_path / "copied", tmp_path / "migrated"
    create_tracking_database(f"sqlite:///{copied}/mlflow.db")
    found = schema_of(copied / "mlflow.db")
    for folder in (copied, migrated):
        build(folder, *OF_MLFLOW)
        # Nothing remembers where the empty one was made.
        assert read(folder / "mlflow.db", DEFAULT_EXPERIMENT) == [("Default", f"{folder}/mlruns/0")]
    assert found == schema_of(copied / "mlflow.db") == schema_of(migrated / "mlflow.db")


def test_a_database_that_is_there_stays(tmp_path: Path) -> None:
    for name in ("prefect.db", "mlflow.db"):
        (tmp_path / name).write_text("somebody's")
    create_prefect_database({"PREFECT_HOME": str(tmp_path)})
    create_tracking_database(f"sqlite:///{tmp_path}/mlflow.db")
    assert {path.name for path in tmp_path.iterdir()} == {"prefect.db", "mlflow.db"}
    assert {path.read_text() for path in tmp_path.iterdir()} == {"somebody's"}


@pytest.mark.parametrize("left", ["prefect.db-wal", "prefect.db-journal"])
def test_what_a_deleted_database_has_left_is_not_applied_to_a_copy(
    tmp_path: Path, left: str
) -> None:
    (tmp_path / left).touch()
    create_prefect_database({"PREFECT_HOME": str(tmp_path)})
    assert [path.name for path in tmp_path.iterdir()] == [left]


@pytest.mark.parametrize(
    "uri", ["sqlite:///{}/a/mlflow.db?timeout=9", "http://127.0.0.1:5000", "sqlite:///"]
)
def test_other_addresses_get_no_file(tmp_path: Path, uri: str) -> None:
    create_tracking_database(uri.format(tmp_path))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
