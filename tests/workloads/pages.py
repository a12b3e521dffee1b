"""The code on a page of docs, and whether it is that of the example files."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = DOCS / "examples"


def blocks_of(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def not_in_files(page: str, files: str = "*.py") -> list[str]:
    """The blocks of Python on a page that none of these example files has."""
    sources = [_squeezed(file.read_text()) for file in EXAMPLES.glob(files)]
    return [
        block
        for block in blocks_of(page)
        if not any(_squeezed(block) in source for source in sources)
    ]


def _squeezed(code: str) -> str:
    """The code without what a formatter may change: blanks, and commas that end a line."""
    return re.sub(r"\s|,(?=\s*[)\]}])", "", code)
