"""`python -m tests.pytorch` writes docs/pytorch.md: what of PyTorch is exact, what is refused.

With `--check`, it writes nothing and fails if the page is not what the table gives. The sentences
of refusals are those that a training raises here.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import wrap

from tests.pytorch.case import Case
from tests.pytorch.engine import engine
from tests.pytorch.table import SECTIONS
from train_core.errors import ConfigError
from train_core.storage.run_folder import RunFolder

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/pytorch.md"
BEGIN = "<!-- table: begin (python -m tests.pytorch) -->"
END = "<!-- table: end -->"


def page() -> str:
    """The page with the table as it is now."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n{END}{rest.partition(END)[2]}"


def table() -> str:
    """Each section's rows: the exact ones, and the refused ones with their sentences."""
    lines = []
    for section, rows in SECTIONS.items():
        exact = [name for name, case in rows.items() if not case.refused]
        refused = {name: case for name, case in rows.items() if case.refused}
        lines += [f"### {section}", "", *wrap(f"Exact: {'; '.join(exact)}.", 110), ""]
        if refused:
            lines += ["| refused | on shards | what it says |", "| --- | --- | --- |"]
            lines += [
                f"| {name} | {_on(case)} | {_sentence(f'{section}: {name}', case)} |"
                for name, case in refused.items()
            ]
            lines.append("")
    return "\n".join(lines)


def _on(case: Case) -> str:
    return "any" if case.refused_from == 1 else f"{case.refused_from} and more"


def _sentence(name: str, case: Case) -> str:
    with TemporaryDirectory() as storage:
        try:
            engine(name, case.refused_from, RunFolder(storage, "run"))
        except ConfigError as error:
            return str(error).replace("|", "\\|")
    raise AssertionError(f"{name} is not refused")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    found = page()
    if not asked.check:
        PAGE.write_text(found)
    elif found != PAGE.read_text():
        sys.exit("docs/pytorch.md is not what the table gives: run python -m tests.pytorch")


if __name__ == "__main__":
    main()
