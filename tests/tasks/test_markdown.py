"""What Prefect's pages show of names and reasons is text: no markup, no HTML, no link, no image."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evertrain_tasks.report.artifacts import checkpoint_rows
from evertrain_tasks.report.escaped_markdown import code, link, plain, table
from evertrain_tasks.report.page import metrics_table
from evertrain_tasks.report_predictions import predictions_markdown
from tests.flows.test_results import PREDICTIONS, REPORT, checkpoint, evaluated

HOSTILE = (
    "a | b",
    "`code`",
    "<script>alert(1)</script>",
    "[here](http://evil)",
    "![i](http://evil/i.png)",
    "http://evil/x",
    "www.evil.example",
    "a\n# heading",
    "*bold* _it_ ~~no~~",
    "me@evil.example",
    "x\x1b[31m",
    "&lt;b&gt;",
    "http://me:pw@host",
)


def refuse_markup(page: str) -> None:
    """Raise if Markdown, as Prefect's page reads it, finds anything in it."""
    bare = re.sub(r"\\.", "", page)
    assert "<" not in bare
    assert "](" not in bare
    assert "://" not in bare
    assert not re.search(r"www\.|[`*_~\[\]!#]", bare, re.IGNORECASE)
    assert page.isprintable()
    assert "pw" not in page


@pytest.mark.promise("report-text")
@pytest.mark.parametrize("text", HOSTILE)
def test_a_text_of_others_is_plain(text: str) -> None:
    refuse_markup(plain(text))
    cells = re.split(r"(?<!\\)\|", table(["metric"], [[text]]).splitlines()[-1])
    assert len(cells) == 3, "one cell, between its two borders"


@given(st.text())
def test_no_text_ends_a_cell_of_a_table_or_a_line(text: str) -> None:
    (row,) = table(["metric", "value"], [[text, "1"]]).splitlines()[2:]
    assert len(re.split(r"(?<!\\)(?:\\\\)*\|", row)) == 4


@pytest.mark.parametrize("text", ["plain/name-1", "a `tick`", "a|b", "", "   "])
def test_code_is_not_ended_by_what_is_in_it(text: str) -> None:
    assert code(text) == (f"`{text}`" if text == "plain/name-1" else plain(text))


def test_an_address_is_a_link_if_it_is_one_of_the_web() -> None:
    assert link("run", "http://host:5000/#/x?y=1") == "[run](http://host:5000/#/x?y=1)"
    for url in ("javascript:alert(1)", "http://a) [b](http://evil", "http://a b", "sqlite:///x"):
        assert link("run", url) == f"run: {code(url)}"


@pytest.mark.promise("report-text")
@pytest.mark.parametrize("text", HOSTILE)
def test_the_pages_and_tables_hold_no_markup_of_others(text: str) -> None:
    tonight = REPORT.model_copy(
        update={
            "evaluations": [
                evaluated(20, 0.5).model_copy(update={"metrics": {text: 0.5}}),
                evaluated(20, 0.5, "test"),
            ],
            "best": checkpoint(20),
        }
    )
    *_, row, _ = metrics_table(tonight, tonight).splitlines()
    assert len(re.split(r"(?<!\\)\|", row)) == 9
    (shown,) = checkpoint_rows(tonight.model_copy(update={"run": text}))
    refuse_markup(shown["checkpoint"])
    assert all(name.isprintable() for name in shown)
    page = predictions_markdown("run", PREDICTIONS.model_copy(update={"source": text}))
    (line,) = [line for line in page.splitlines() if line.startswith("| input |")]
    assert len(re.split(r"(?<!\\)\|", line)) == 4
    assert "pw" not in page
