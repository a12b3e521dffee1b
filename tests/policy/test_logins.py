"""A user's name and password in a URL are a secret; what else looks like it is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train_core.policy.logins import has_hidden_login, hide_logins, with_login_of

PART = st.text(st.characters(codec="ascii", categories=["L", "N"], include_characters="-_.%"))


@given(PART, PART.filter(bool), PART.filter(bool))
def test_a_login_is_hidden_and_given_back(user: str, password: str, path: str) -> None:
    url = f"sftp://{user}:{password}@host:22/{path}"
    hidden = hide_logins({"a": [url, 7, None]})["a"][0]
    assert hidden == f"sftp://***@host:22/{path}"
    assert has_hidden_login(hidden)
    assert with_login_of(hidden, url) == url
    assert hide_logins(hidden) == hidden
    assert with_login_of(hidden, hidden) == hidden


def test_a_login_is_given_to_its_own_host_only() -> None:
    there = "sftp://***@host/x"
    assert with_login_of(there, "sftp://me:pw@host/y") == "sftp://me:pw@host/x"
    assert with_login_of(there, "sftp://me:pw@another/y") == there


@pytest.mark.parametrize(
    "url",
    [
        *("s3://bucket/a:b@c", "abfs://container@account.dfs.core.windows.net/x", "/data/a:b@c"),
        *("http://host:80/x@y", "hdfs://user@host:9000/x", "a:b@c"),
    ],
)
def test_what_is_no_login_stays(url: str) -> None:
    assert hide_logins(url) == url
    assert not has_hidden_login(url)
