from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train_core.policy.champion.model_names import (
    ModelAddress,
    check_model_name,
    default_model_name,
)

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", fullmatch=True).filter(
    lambda name: ".." not in name
)
ALIASES = st.sampled_from(["champion", "challenger", "of-mine"])


@given(NAMES)
def test_a_plain_name_is_taken(name: str) -> None:
    assert check_model_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "a/b", "/a", "a/", "../a", "a..b", ".hidden", "_models", "-rf", "a b"),
        *("a\n", "a\0", "a\\b", "a*", "a@b", "a:b", "models:/a", "ü", "a" * 129),
    ],
)
def test_a_hostile_name_is_refused_and_shown(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be a registered model") as caught:
        check_model_name(name)
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize(
    ("workload", "name"),
    [
        ("train_core.workloads.digits:Digits", "Digits"),
        ("shop.models:_Ranker", "Ranker"),
        ("train:main", "main"),
        ("a:_", "model"),
        ("a:Ünet", "net"),
        ("a:" + 200 * "N", 128 * "N"),
    ],
)
def test_a_model_is_called_as_its_workload_by_default(workload: str, name: str) -> None:
    assert check_model_name(default_model_name(workload)) == name


@given(NAMES, st.integers(1, 10**8 - 1))
def test_a_version_is_parsed_back(name: str, version: int) -> None:
    assert ModelAddress.parse(f"models:/{name}/{version}") == ModelAddress(name, version)


@given(NAMES, ALIASES)
def test_an_alias_is_parsed_back(name: str, alias: str) -> None:
    assert ModelAddress.parse(f"models:/{name}@{alias}") == ModelAddress(name, None, alias)


@given(st.text())
def test_any_other_text_is_no_address(text: str) -> None:
    assert ModelAddress.parse(text) is None


@pytest.mark.parametrize(
    "text",
    [
        *("models:/", "models:/a", "models:/a/", "models:/a@", "models:/a/b", "models:/a/latest"),
        *("models:a/1", "models:/a/1/", "models:/a/1@b", "models:/a@b/1", "models:/a@b@c"),
        *("models:/../1", "models:/a..b/1", "models:/_models@champion", "models:/a/-1"),
        *("models:/a/1\n", "models:/a/\N{ARABIC-INDIC DIGIT ONE}", "models:/a/123456789"),
        *("models:/a b@champion", " models:/a/1", "runs:/a/1", "models://a/1"),
    ],
)
def test_what_is_only_like_an_address_is_none(text: str) -> None:
    assert ModelAddress.parse(text) is None
