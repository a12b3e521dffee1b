from __future__ import annotations

import logging

import pytest

from train_core.text.log_lines import _Line


@pytest.mark.promise("secrets")
def test_a_line_of_the_log_has_no_secrets_nor_has_the_error_below_it() -> None:
    error = OSError("no answer from s3://me:hunter2@bucket")
    url = ("http://me:hunter2@host/x?token=hunter2",)
    told = (OSError, error, None)
    record = logging.LogRecord("train_core", logging.WARNING, "", 1, "cannot read %s", url, told)
    assert _Line().format(record).splitlines() == [
        "warning: cannot read http://***@host/x?token=***",
        "OSError: no answer from s3://***@bucket",
    ]
