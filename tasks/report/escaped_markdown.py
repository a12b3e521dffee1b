"""Text of others in Markdown: Prefect's pages show it as it is, and interpret nothing of it."""

from __future__ import annotations

import re

from train_core.text.shown_text import shown

MOST_CHARS = 1_000
"""Of one name or address on a page."""
_MARKUP = re.compile(r"[\\`*_{}\[\]()#!|~^$@]")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
# Addresses become links without any markup.
_BARE_LINK = re.compile(r"(://|www\.)", re.IGNORECASE)
_ADDRESS = re.compile(r"https?://[^\s()<>\\`'\"|]+")


def plain(text: str) -> str:
    """The text, of which nothing is markup, HTML or a link."""
    marked = _MARKUP.sub(r"\\\g<0>", shown(text, MOST_CHARS))
    unlinked = _BARE_LINK.sub(lambda found: f"{found[0][:-1]}\\{found[0][-1]}", marked)
    return "".join(_ENTITIES.get(char, char) for char in unlinked)


def code(text: str) -> str:
    """The text as code, to be copied; plain where it would end the code or a cell of a table."""
    text = shown(text, MOST_CHARS)
    return plain(text) if not text.strip() or set(text) & set("`|") else f"`{text}`"


def link(title: str, url: str) -> str:
    """A link, if the address is one of the web that needs no quoting."""
    url = shown(url)
    return f"[{title}]({url})" if _ADDRESS.fullmatch(url) else f"{title}: {code(url)}"


def table(heading: list[str], rows: list[list[str]]) -> str:
    """A table of plain texts."""
    cells = [[plain(cell) for cell in line] for line in (heading, *rows)]
    lines = [cells[0], ["---"] * len(heading), *cells[1:]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
