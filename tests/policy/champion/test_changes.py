from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from train_core.policy.champion.changes import Inputs, changes


def split(samples: int, digest: str | None = "d") -> dict[str, Any]:
    return {"samples": samples, "digest": digest}


SAMPLES = {"train": 150, "validation": 40, "test": 40}
WAS = Inputs(
    datasets={name: split(samples) for name, samples in SAMPLES.items()},
    config={"epochs": 3, "batch_size": 32},
    settings={"learning_rate": 0.01, "width": 4},
    code={"evertrain": "0.1", "commit": "aa"},
    modules={"mywork": "1", "mymodel": "2"},
    packages={"torch": "2.13.0+cpu", "timm": "1.0"},
    libraries={"torch": "2.13.0", "numpy": "2.4"},
    scored="test",
)


def with_train(now: dict[str, Any], **changed: Any) -> Inputs:
    return replace(WAS, datasets=WAS.datasets | {"train": now}, **changed)


def with_files(digest: str, train: dict[str, Any] | None = None, **files: str) -> Inputs:
    """What a workload that names its files as the source `data` comes of."""
    found = with_train(train or split(150), sources={"data": digest})
    return replace(found, files={"data": files} if files else {})


THREE = {"a": "1", "b": "2", "c": "3"}
FILES = with_files("x", **THREE)
OLD = replace(WAS, code=WAS.code | {"workload": "d", "data": "e"}, modules={}, packages={})
URL = replace(WAS, scored="s3://new", scored_state="x", is_split_scored=False)


@pytest.mark.parametrize(
    ("was", "now", "told"),
    [
        (WAS, WAS, []),
        (FILES, FILES, []),
        (URL, URL, []),
        (WAS, with_train(split(172)), ["new data: train 172 samples, not 150"]),
        (WAS, with_train(split(150, "e")), ["new data: train changed"]),
        (
            FILES,
            with_files("y", split(170, "e"), **THREE, d="4", e="5", f="6"),
            ["new data: data 3 files more"],
        ),
        (FILES, with_files("y", split(120, "e"), a="1"), ["new data: data 2 files fewer"]),
        (
            FILES,
            with_files("y", split(150, "e"), a="1", b="9", d="4"),
            ["new data: data 1 file more, data 1 file fewer, data 1 file changed"],
        ),
        # A list of files that cannot be read.
        (with_files("x"), with_files("y", a="1"), ["new data: data changed"]),
        (WAS, FILES, ["new data: data changed"]),
        # The same files, another cut of them into splits.
        (FILES, with_files("x", split(149, "e")), ["new data: train 149 samples, not 150"]),
        # Files that were recorded need no digest of the splits.
        (with_files("x", split(150, None)), with_files("x", split(150, None)), []),
        (
            WAS,
            replace(WAS, datasets={name: split(41, "e") for name in WAS.datasets}),
            [f"new data: {', '.join(f'{s} 41 samples, not {n}' for s, n in SAMPLES.items())}"],
        ),
        (
            with_train(split(150, None)),
            with_train(split(150, None)),
            ["train data has no digest, so whether it changed is not known"],
        ),
        (
            WAS,
            replace(WAS, settings={"learning_rate": 0.02, "width": 4}),
            ["settings.learning_rate changed (0.01 to 0.02)"],
        ),
        (
            WAS,
            replace(WAS, settings={"learning_rate": 0.01, "width": 4, "depth": 2}),
            ["settings.depth changed (None to 2)"],
        ),
        (
            WAS,
            replace(WAS, config={"epochs": 5, "batch_size": 64}),
            ["batch_size changed (32 to 64)", "epochs changed (3 to 5)"],
        ),
        (
            WAS,
            replace(WAS, code={"evertrain": "0.1", "commit": "bb"}),
            ["code: commit changed"],
        ),
        (WAS, replace(WAS, code={}), ["code: commit changed", "code: evertrain changed"]),
        (
            WAS,
            replace(WAS, modules={"mywork": "1", "mymodel": "3", "more": "4"}),
            ["code: more changed", "code: mymodel changed"],
        ),
        (
            WAS,
            replace(WAS, packages={"torch": "2.14.0", "timm": "1.1"}),
            ["timm changed ('1.0' to '1.1')"],
        ),
        # Of an earlier version: the digests of the files that were named, and of no other.
        (OLD, WAS, ["the run before recorded the digest of one file only"]),
        (
            replace(OLD, code=OLD.code | {"evertrain": "0.0"}),
            WAS,
            ["code: evertrain changed", "the run before recorded the digest of one file only"],
        ),
        (
            WAS,
            replace(WAS, libraries={"torch": "2.14.0", "numpy": "2.4"}),
            ["torch changed ('2.13.0' to '2.14.0')"],
        ),
        (WAS, replace(WAS, first_weights="w"), ["the weights to begin with changed"]),
        (WAS, URL, ["infer_input changed ('test' to 's3://new')"]),
        (
            URL,
            replace(URL, scored_state="y"),
            ["the files at infer_input 's3://new' changed"],
        ),
        # Unknown is not unchanged.
        (
            replace(URL, scored_state=""),
            replace(URL, scored_state=""),
            ["the files at infer_input 's3://new' changed"],
        ),
        (
            WAS,
            with_train(split(172), settings={"learning_rate": 0.02, "width": 4}),
            [
                "new data: train 172 samples, not 150",
                "settings.learning_rate changed (0.01 to 0.02)",
            ],
        ),
    ],
)
def test_what_changed_is_named_and_nothing_else(was: Inputs, now: Inputs, told: list[str]) -> None:
    assert changes(was, now) == told
