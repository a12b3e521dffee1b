"""A file of parameters is a small regular file of JSON's values, or is refused in one line."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import yaml

from evertrain_flows.cli.app import main
from evertrain_flows.cli.configuration_file import MOST_BYTES, read_configuration
from evertrain_flows.parameters import RetrainParameters
from train_core.config import TrainConfig
from train_core.errors import ConfigError
from train_core.loading import parse_settings

TINY = "tests.rank.tiny:Tiny"

BOMB = b"a: &a [x,x,x,x,x,x,x,x,x,x]\n" + b"".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{','.join([f'*{chr(97 + n)}'] * 10)}]\n".encode()
    for n in range(9)
)


@pytest.mark.promise("one-line-refusal")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"epochs: 5\nrun: \xff\n", "line 2 is not UTF-8 text"),
        (b"epochs: 2024-13-45\n", "epochs: Input should be a valid integer"),
        (b"epochs: !!timestamp 2024-13-45\n", "epochs: Input should be a valid integer"),
        (b"epochs: " + b"9" * 5000, "line 1: a number has 5000 digits"),
        (b"run: a\nseed: 0x" + b"f" * 5000, "line 2: a number has 5002 digits"),
        (b"x: " + b"[" * 101 + b"]" * 101, "nested more than 100 deep"),
        (b"[" * 900 + b"]" * 900, "nested more than 100 deep"),
        (b"- " * 20_000, "nested more than 100 deep"),
        # From 6.0.4 on PyYAML itself refuses what is more than 1,000 deep: "maximum nesting depth".
        (b"x: " + b"[" * 20_000, "nest"),
        (b"[" * 20_000 + b"]" * 20_000, "nest"),
        (b'settings: "' + b"[" * 20_000 + b'"', "its brackets are more than 100 deep"),
        (BOMB, "aliases stand for more than"),
        (b"settings: &a {b: *a}\n", "nested more than"),
        (b"a: '" + b"x" * MOST_BYTES + b"'", f"more than {MOST_BYTES} bytes"),
        (b"settings: {a: !!binary aGk=}\n", "a value in it is bytes, which JSON does not have"),
        (b"settings: !!set {a, b}\n", "a value in it is set"),
        (b"epochs: !!bool maybe\n", "not of the kind that its tag names"),
        (b"epochs: !!int x\n", "not of the kind that its tag names"),
        (b"a: !!python/object/apply:os.getcwd []\n", "could not determine a constructor"),
        (b"? [a]\n: 3\n", "unhashable key"),
        (b"\ta: 1", "line 1: "),
        (b"- a\n", "it is not a mapping of parameters to values"),
        (b"", "it is not a mapping of parameters to values"),
        (b"1: 2\n", "Keys should be strings"),
        (b'"x[/nope]\\e[31m": 2\n', r"x[/nope]\x1b[31m: Extra inputs are not permitted"),
    ],
    ids=lambda one: str(one[:30]),
)
def test_what_is_no_file_of_parameters_is_one_line(
    content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "nightly.yaml"
    file.write_bytes(content)
    began = time.monotonic()
    assert main(["retrain", "--config", str(file)]) == 2
    assert time.monotonic() - began < 5
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert len(captured.err) < 1000


@pytest.mark.promise("one-line-refusal")
def test_a_pipe_or_a_device_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    for file in (str(tmp_path / "pipe"), "/dev/zero", "/dev/null", "/dev/stdin"):
        began = time.monotonic()
        assert main(["retrain", "--config", file]) == 2
        assert time.monotonic() - began < 2
        assert "it is no regular file" in capsys.readouterr().err
    assert main(["retrain", "--config", str(tmp_path)]) == 2
    assert "Is a directory" in capsys.readouterr().err


def test_what_people_write_is_read(tmp_path: Path) -> None:
    file = tmp_path / "nightly.yaml"
    file.write_text(
        "\ufeff# nightly\nepochs: 5\nsettings: &s {width: 8, classes: {0: 1.5}, day: 2026-11-25}\n"
        "train_loop_config: *s\nstrict: yes\nclip_norm: 1.0e-2\nrun: null\n"
    )
    found = {"width": 8, "classes": {0: 1.5}, "day": "2026-11-25"}
    assert read_configuration(str(file)) == {
        "epochs": 5,
        "settings": found,
        "train_loop_config": found,
        "strict": True,
        "clip_norm": 0.01,
        "run": None,
    }
    link = tmp_path / "link.yaml"
    link.symlink_to(file)
    assert read_configuration(str(link))["epochs"] == 5


@pytest.mark.promise("yaml-numbers")
@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("1e-3", 0.001),
        ("-1E+2", -100.0),
        ("5e2", 500.0),
        (".5e1", 5.0),
        ("1.5e3", 1500.0),
        ("1.5e-3", 0.0015),
        ("'1e-3'", "1e-3"),
        ("1e-3x", "1e-3x"),
        ("e3", "e3"),
        ("12", 12),
        ("1e", "1e"),
    ],
)
def test_a_number_with_an_exponent_is_a_number(tmp_path: Path, written: str, read: object) -> None:
    file = tmp_path / "nightly.yaml"
    file.write_text(f"settings: {{lr: {written}}}\ntrain_loop_config: [{written}]\n")
    found = read_configuration(str(file))
    assert found == {"settings": {"lr": read}, "train_loop_config": [read]}
    assert type(found["settings"]["lr"]) is type(read)


@pytest.mark.promise("yaml-numbers")
def test_the_text_that_prefect_reads_is_a_number_where_nothing_else_says_what_it_is() -> None:
    text = "train_loop_config: {lr: 1e-3, layers: [{rate: 5e-2}], name: 1e-3x, big: 1e999}"
    read = yaml.safe_load(text)["train_loop_config"]
    assert read["lr"] == "1e-3"
    given = RetrainParameters(train_fn="module:train", train_loop_config=read)
    # Only a deployment's come from Prefect's reader: in JSON a text is a text.
    assert given.train_loop_config == read
    config = given.of_deployment()
    expected = {"lr": 0.001, "layers": [{"rate": 0.05}], "name": "1e-3x", "big": "1e999"}
    assert config.train_loop_config == expected
    # Where a type says number, it is one.
    assert TrainConfig.model_validate({"hang_timeout_s": "1e3"}).hang_timeout_s == 1000
    assert parse_settings(TINY, {"learning_rate": "1e-3"}).model_dump()["learning_rate"] == 0.001


def test_a_file_of_many_values_is_read_in_time(tmp_path: Path) -> None:
    file = tmp_path / "long.yaml"
    file.write_text("settings:\n" + "".join(f"  a{n}: {n}\n" for n in range(15_000)))
    began = time.monotonic()
    assert len(read_configuration(str(file))["settings"]) == 15_000
    assert time.monotonic() - began < 20


def test_the_path_is_named_in_short(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"more characters\)' cannot be read: File name too long"):
        read_configuration(str(tmp_path / ("x" * 120_000)))
