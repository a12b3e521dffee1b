from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train_core.errors import ConfigError
from train_core.storage.records.names import (
    CheckpointName,
    DecisionName,
    JobName,
    LeaseName,
    PinName,
    SegmentName,
    check_run_name,
    default_run_name,
    number_of,
    numbered,
)

NUMBERS = st.integers(0, 10**12)
KINDS = [CheckpointName, DecisionName, LeaseName, PinName, SegmentName]
Name = CheckpointName | DecisionName | LeaseName | PinName | SegmentName
WHO = st.from_regex(r"[a-z][a-z0-9-]{0,99}", fullmatch=True)
MODELS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,40}", fullmatch=True)

NAMES = st.one_of(
    st.builds(CheckpointName, NUMBERS, NUMBERS),
    st.builds(SegmentName, NUMBERS, NUMBERS, NUMBERS),
    st.builds(LeaseName, NUMBERS),
    st.builds(PinName, st.builds(CheckpointName, NUMBERS, NUMBERS), WHO),
    st.builds(DecisionName, MODELS, NUMBERS, NUMBERS),
)
ITS_ONLY_SPELLINGS = [
    "step-00001200-a0007",
    "steps-00000001-00000100-a0001.jsonl",
    "0007.json",
    "step-00001200-a0007/infer-0a1b2c3d.json",
    "Digits/v00000003-c00000001.json",
]


@given(NAMES)
def test_a_name_is_parsed_back_from_its_spelling(name: Name) -> None:
    assert type(name).parse(str(name)) == name
    assert [kind.parse(str(name)) for kind in KINDS].count(None) == len(KINDS) - 1


@given(st.lists(st.builds(CheckpointName, st.integers(0, 10**8 - 1), st.integers(0, 9999))))
def test_spellings_sort_as_their_numbers_do(names: list[CheckpointName]) -> None:
    assert sorted(names) == sorted(names, key=str)


@given(st.sampled_from(KINDS), st.text())
def test_any_text_is_a_name_in_its_only_spelling_or_none(kind: type[Name], text: str) -> None:
    parsed = kind.parse(text)
    assert parsed is None or str(parsed) == text


@pytest.mark.parametrize("spelling", ITS_ONLY_SPELLINGS)
@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: f" {text}",
        lambda text: f"{text}\n",
        lambda text: f"{text}/",
        lambda text: f"../{text}",
        lambda text: f"{text}.tmp",
        lambda text: text.upper(),
        lambda text: text.replace("00", "0", 1),
        lambda text: text.replace("0", "00000", 1),
        lambda text: text.replace("0", "\N{ARABIC-INDIC DIGIT ZERO}", 1),
        lambda text: text.replace("0", "-", 1),
        lambda _: "",
    ],
)
def test_another_spelling_is_no_name(spelling: str, spoil: object) -> None:
    assert callable(spoil)
    spoiled = spoil(spelling)
    if spoiled != spelling:
        assert [kind.parse(spoiled) for kind in KINDS] == [None] * len(KINDS)


@given(NUMBERS.filter(bool), st.text())
def test_a_documents_number_is_its_only_spelling(number: int, text: str) -> None:
    assert number_of(numbered(number)) == number
    found = number_of(text)
    assert found is None or numbered(found) == text


@pytest.mark.parametrize(
    "text",
    [
        *("Digits/v3-c1.json", "../v00000003-c00000001.json", "a/b/v00000003-c00000001.json"),
        *("v00000003-c00000001.json", "answers.json", "Digits/answers/v00000003-c00000001.json"),
    ],
)
def test_what_is_no_decisions_name(text: str) -> None:
    assert DecisionName.parse(text) is None


@pytest.mark.parametrize("name", ["a", "retrain-2026.01_b", "0", "a" * 128])
def test_a_plain_run_name_is_taken(name: str) -> None:
    assert check_run_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "a/b", "/a", "a/", "../a", "a..b", ".hidden", "-rf", "a b", "a\n", "a\0"),
        *("a\\b", "a*", "s3://a", "ü", "a" * 129),
    ],
)
def test_a_hostile_run_name_is_refused_and_shown(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_run_name(name)
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize(
    "who", ["", "7", "-a", "A", "a_b", "a.b", "a/b", "..", "a\n", "ü", "a" * 101]
)
def test_a_hostile_name_of_somebody_who_pins_is_refused_and_shown(who: str) -> None:
    with pytest.raises(ValueError, match="cannot pin a checkpoint") as caught:
        PinName(CheckpointName(1, 1), who)
    assert repr(who) in str(caught.value)
    assert PinName.parse(f"step-00000001-a0001/{who}.json") is None


@given(
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,40}", fullmatch=True),
    NUMBERS,
    st.from_regex(r"[0-9a-f]{8}", fullmatch=True),
    st.integers(1, 99),
)
def test_a_job_is_named_after_its_run_and_attempt(
    run: str, attempt: int, where: str, number: int
) -> None:
    name = JobName(run, attempt, where, number)
    assert JobName.parse(str(name)) == name


@pytest.mark.parametrize("text", ["run", "run-a0001", "run-a0001-0a1b2c3", "run-score-abcdefgh"])
def test_what_is_no_jobs_name(text: str) -> None:
    assert JobName.parse(text) is None


NIGHT = datetime(2026, 11, 23, 3, 0, 0, 999, UTC)
FLOW_RUN = "06a1e52e-6f1e-7d63-8000-9a2c4d01a206"


@pytest.mark.promise("run-names")
@pytest.mark.parametrize(
    ("workload", "scheduled", "name"),
    [
        ("clinic:Clinic", NIGHT, "clinic-20261123-030000-01a206"),
        (
            "clinic:Clinic",
            NIGHT.astimezone(timezone(timedelta(hours=9))),
            "clinic-20261123-030000-01a206",
        ),
        ("a.b:_My_Model", NIGHT, "my-model-20261123-030000-01a206"),
        ("a:Ünet", NIGHT, "net-20261123-030000-01a206"),
        ("a:_", NIGHT, "run-20261123-030000-01a206"),
        ("a:" + 300 * "A", NIGHT, 80 * "a" + "-20261123-030000-01a206"),
    ],
)
def test_a_run_without_a_name_is_called_by_workload_and_time(
    workload: str, scheduled: datetime, name: str
) -> None:
    assert check_run_name(default_run_name(workload, scheduled, FLOW_RUN)) == name


def test_flow_runs_that_were_scheduled_together_have_different_names() -> None:
    another = "06a1e52e-6f1e-7d64-8000-5be31f9902c7"
    assert another[:8] == FLOW_RUN[:8]
    names = {default_run_name("clinic:Clinic", NIGHT, one) for one in (FLOW_RUN, another)}
    assert len(names) == 2
