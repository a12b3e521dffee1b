"""Links, pictures and modules that README and docs name are there, and each picture is shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.users_project import TAKEN

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/*.md", "deployments/**/*.md")
    for page in ROOT.glob(pattern)
)
PICTURES = ROOT / "docs/pictures"
LARGEST_BYTES = 300_000
"""A clone has every version of a picture that there ever was."""
MODULES = [
    f"/{path.relative_to(ROOT)}"
    for folder in ("benchmarks", "deployments", "docs", "flows", "tasks", "tests", "train_core")
    for path in (ROOT / folder).rglob("*.py")
]


def without_code(text: str) -> str:
    return re.sub(r"(?ms)^```.*?^```$|`[^`\n]*`", "", text)


def links_in(page: Path) -> list[str]:
    """The targets of the links and pictures of a page that are no web addresses."""
    found = re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text()))
    return [one for one in found if "://" not in one]


def pictures_in(page: Path) -> set[Path]:
    """The pictures that a page shows."""
    shown = re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", without_code(page.read_text()))
    return {(page.parent / one).resolve() for one in shown if "://" not in one}


def unshown(folder: Path, pages: Iterable[Path]) -> list[str]:
    """The pictures in a folder that no page shows."""
    shown = {picture for page in pages for picture in pictures_in(page)}
    return sorted(one.name for one in folder.iterdir() if one.resolve() not in shown)


def anchors_of(page: Path) -> set[str]:
    """What the headings of a page are called in links to them."""
    headings = re.findall(r"(?m)^#+ (.*)$", page.read_text())
    return {re.sub(r"[^\w\- ]", "", one.strip().lower()).replace(" ", "-") for one in headings}


def broken(page: Path) -> Iterator[str]:
    for link in links_in(page):
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            yield link


def without_file(page: Path) -> list[str]:
    """The modules that a page names, by a path or the end of one, and that are not there."""
    named = re.findall(r"`([\w/.-]*\w\.py)(?::\w+)?`", page.read_text())
    yours = {f"{name}.py" for name in (*TAKEN, "tasks", "train")}
    there = [*MODULES, *(f"/{name}" for name in yours)]
    return [name for name in named if not any(one.endswith(f"/{name}") for one in there)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading_that_are_there(page: Path) -> None:
    assert list(broken(page)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_module_that_a_page_names_is_there(page: Path) -> None:
    assert without_file(page) == []


def test_every_picture_is_shown_by_a_page_and_is_small() -> None:
    assert unshown(PICTURES, PAGES) == []
    large = [one.name for one in PICTURES.iterdir() if one.stat().st_size >= LARGEST_BYTES]
    assert large == []


def test_a_picture_that_no_page_shows_is_found(tmp_path: Path) -> None:
    for name in ("shown.png", "linked.png", "code.png"):
        (tmp_path / name).touch()
    page = tmp_path / "page.md"
    page.write_text("![one](shown.png) [two](linked.png) `![three](code.png)`\n")
    assert unshown(tmp_path, [page]) == ["code.png", "linked.png", "page.md"]


def test_a_link_to_what_is_not_there_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One page\n[a](#one-page) [b](#two) ![c](c.png) [d](page.md) `[e](e.md)`\n")
    assert list(broken(page)) == ["#two", "c.png"]


def test_a_module_that_is_not_there_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("`tasks/select.py`, `train.py`, `no_such/train.py`, `rain.py:main`\n")
    assert without_file(page) == ["no_such/train.py", "rain.py"]
