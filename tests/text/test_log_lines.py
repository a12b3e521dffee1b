from __future__ import annotations

import logging
import sys

import pytest

from train_core.text.log_lines import _Line


@pytest.mark.promise("secrets")
def test_a_line_of_the_log_has_no_secrets_nor_has_the_traceback_below_it() -> None:
    try:
        raise OSError("no answer from s3://me:hunter2@bucket")
    except OSError:
        error = sys.exc_info()
    url = ("http://me:hunter2@host/x?token=hunter2",)
    record = logging.LogRecord("train_core", logging.WARNING, "", 1, "cannot read %s", url, error)
    line = _Line().format(record)
    assert line.startswith("warning: cannot read http://***@host/x?token=***\nTraceback")
    assert line.endswith("OSError: no answer from s3://***@bucket")
    assert "hunter2" not in line
