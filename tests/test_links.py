"""Links in README and docs lead to files and headings that are there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/*.md", "deployments/**/*.md")
    for page in ROOT.glob(pattern)
)
PICTURES = ROOT / "docs/pictures"
MAX_PICTURE_BYTES = 200_000
"""A clone gets every one of them."""


def without_code(text: str) -> str:
    return re.sub(r"(?ms)^```.*?^```$|`[^`\n]*`", "", text)


def links_in(page: Path) -> list[str]:
    """The targets of the links and pictures of a page that are no web addresses."""
    found = re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text()))
    return [one for one in found if "://" not in one]


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading_that_are_there(page: Path) -> None:
    assert list(broken(page)) == []


def test_a_link_to_what_is_not_there_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One page\n[a](#one-page) [b](#two) ![c](c.png) [d](page.md) `[e](e.md)`\n")
    assert list(broken(page)) == ["#two", "c.png"]
