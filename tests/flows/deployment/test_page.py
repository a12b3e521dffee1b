"""The pages with commands are true word for word: a reader carries out each of their commands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml
from prefect.cli._app import _app
from prefect.deployments.steps.core import _get_function_for_step

from evertrain_flows.cli.app import Evertrain
from tests.flows.conftest import ROOT
from tests.flows.deployment.page import PLACEHOLDER, Reader, is_yaml, mentioned, steps_of

ON_PREFECT = ("docs/prefect.md", "deployments/README.md")
PAGES = (*ON_PREFECT, "docs/bring-your-own.md", "docs/training-functions.md")
"""The commands of the last two are carried out by tests/compat/test_page.py."""
STEPS = {page: steps_of((ROOT / page).read_text()) for page in PAGES}
A_SHELLS = ("cd ", "cp ", "mkdir ", "export ", "python ")


@pytest.mark.promise("page-commands")
@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_the_page_parses(page: str) -> None:
    assert STEPS[page]
    for step in STEPS[page]:
        if is_yaml(step):
            for one in yaml.safe_load(step).get("pull", []):
                assert _get_function_for_step(next(iter(one)))
            continue
        command = PLACEHOLDER.sub("01a20711-33f2-7134-99cd-09a217f632ba", step)
        program, *arguments = shlex.split(command)
        if program == "prefect":
            # That one is taken by the program, before it looks for a command.
            asked = [one for one in arguments if one != "--no-prompt"]
            _app.parse_args(asked, exit_on_error=False, print_error=False)
        elif program == "evertrain":
            assert arguments[0] in Evertrain.model_fields
        else:
            assert step.startswith(A_SHELLS), f"the tests do not know how to run it: {step}"


@pytest.mark.parametrize("page", PAGES)
def test_every_command_that_the_text_mentions_is_one_that_is_run(page: str) -> None:
    run = [step for one in STEPS.values() for step in one]
    for command in mentioned((ROOT / page).read_text()):
        begin = re.sub(r"( …| [A-Z]+)$", "", command)
        assert any(step.startswith(begin) for step in run), f"no block has: {command}"


@pytest.mark.promise("page-commands")
@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("page", ON_PREFECT)
def test_a_reader_can_carry_out_the_page_word_for_word(page: str, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    try:
        for step in STEPS[page]:
            reader.follow(step)
    finally:
        reader.close()
