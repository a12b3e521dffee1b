"""What a training was computed on: told, recorded, and refused if somebody wants it strict."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from tests.rank import alone
from train_core.errors import ConfigError
from train_core.rank.distributed import processor
from train_core.rank.distributed.group import Group
from train_core.rank.distributed.processor import continued_on, processor_of
from train_core.storage.records.journal import read_segments
from train_core.storage.run_folder import RunFolder

CPU = torch.device("cpu")
ALONE = Group(rank=0, world_size=1, device=CPU)
SWITCH = "MKL_CBWR"


def test_the_switches_of_the_kernels_belong_to_the_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    plain = processor_of(CPU)
    monkeypatch.setenv(SWITCH, "COMPATIBLE")
    assert processor_of(CPU) == f"{plain}, MKL_CBWR=COMPATIBLE"


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (
            {
                "vendor_id": "GenuineIntel",
                "cpu family": "6",
                "flags": "fma avx2 avx512f amx_bf16 x",
            },
            "GenuineIntel family 6, avx2 fma avx512f amx_bf16",
        ),
        (
            {"vendor_id": "AuthenticAMD", "cpu family": "25", "flags": "fma avx2 avx512f"},
            "AuthenticAMD family 25, avx2 fma avx512f",
        ),
        (
            {"CPU implementer": "0x41", "CPU architecture": "8", "Features": "fp asimd sve"},
            "0x41 family 8, asimd sve",
        ),
    ],
)
def test_vendors_are_told_apart_that_have_the_same_instructions(
    facts: dict[str, str], expected: str
) -> None:
    assert processor._described(facts, {}) == expected


def test_another_processor_is_warned_about_once_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    here = processor_of(CPU)
    with caplog.at_level(logging.WARNING):
        assert continued_on((), ALONE, is_strict=True) == (here,)
        assert continued_on((here,), ALONE, is_strict=True) == (here,)
        assert caplog.messages == []
        assert continued_on(("a vendor",), ALONE, is_strict=False) == ("a vendor", here)
        assert continued_on((here, "other"), ALONE, is_strict=False) == (here, "other", here)
    assert caplog.messages[0] == (
        f"the training was computed on a vendor, and goes on on {here}: the bits of the results "
        "may be others"
    )
    # Of a version that did not record it nothing is known.
    assert continued_on(("unknown",), ALONE, is_strict=True) == ("unknown", here)
    with pytest.raises(ConfigError, match=r"computed on a vendor, and goes on on .* strict is set"):
        continued_on(("a vendor",), ALONE, is_strict=True)


def test_which_rank_has_which_processor_counts() -> None:
    one, other = processor._by_rank(["a", "a", "b"]), processor._by_rank(["b", "a", "a"])
    assert (one, other) == ("a (ranks 0, 1) and b (ranks 2)", "b (ranks 0) and a (ranks 1, 2)")
    assert processor._by_rank(["a", "a"]) == processor._by_rank(["a"]) == "a"


@pytest.mark.promise("surroundings")
def test_each_attempts_processor_is_in_its_checkpoints_and_in_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = RunFolder(str(tmp_path), "run")
    config = {"workload": "tests.rank.tiny:Tiny", "batch_size": 32, "checkpoint_every_steps": 2}
    monkeypatch.delenv(SWITCH, raising=False)
    first = processor_of(CPU)
    alone.run(folder, 1, **config, max_steps=2)
    monkeypatch.setenv(SWITCH, "COMPATIBLE")
    second = processor_of(CPU)
    with pytest.raises(ConfigError, match="strict is set"):
        alone.run(folder, 2, **config, max_steps=4, strict=True)
    with caplog.at_level(logging.WARNING):
        alone.run(folder, 3, **config, max_steps=4)
    assert "the training was computed on" in caplog.text
    newest = folder.newest()
    assert newest is not None
    assert newest.manifest.processors == (first, second)
    entries = read_segments(folder.store, newest.manifest.journal)
    told = [(one.step, one.texts["processors"]) for one in entries if one.texts]
    assert told == [(1, first), (3, second)]
