"""`evertrain diff`, `export` and `verify-resume`: what they print and with which code they end."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from safetensors.torch import load_file

from evertrain_flows.cli.app import main
from evertrain_flows.cli.commands.verify_resume import print_verdict
from tests.rank.alone import run
from train_core.differences import (
    Comparison,
    FirstDifference,
    MetricDifference,
    ResumeVerdict,
    RunsComparison,
    TensorDifference,
)
from train_core.rank.data.recorded_workload import files_in_record
from train_core.storage.fork import fork_checkpoint
from train_core.storage.records.data_files import FileList, FileRecord, SourceFiles, key_of
from train_core.storage.records.names import MODEL_FILE, REPORT_JSON, RUN_JSON
from train_core.storage.run_folder import RunFolder


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Runs `a` and `same`, of equal bits, and `other`; checkpoints of steps 2, 4 and 5."""
    storage = str(tmp_path_factory.mktemp("runs"))
    wait = {"checkpoint_backpressure": "wait"}
    asked = wait | {"checkpoint_every_steps": 2, "keep_last": 9}
    for name, seed in (("a", 0), ("same", 0), ("other", 1)):
        run(RunFolder(storage, name), seed=seed, **asked)
    return storage


def evertrain(*arguments: str) -> int:
    """The exit code of the command line."""
    try:
        return main(list(arguments))
    except SystemExit as ended:
        return int(ended.code or 0)


@pytest.mark.promise("diff")
def test_the_same_bits_are_the_same(storage: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert evertrain("diff", "a", "same", "--storage", storage) == 0
    (*_, newest) = RunFolder(storage, "a").checkpoints()
    files = Path(storage, "a", newest.key).glob("*.safetensors")
    count = sum(len(load_file(file)) for file in files)
    assert f"identical: {count} tensors" in capsys.readouterr().out


@pytest.mark.promise("diff")
def test_what_differs_is_listed_with_code_1(
    storage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evertrain("diff", "a", "other/step-00000004-a0001", "--storage", storage) == 1
    shown = capsys.readouterr().out
    assert "other/checkpoints/step-00000004-a0001" in shown
    for part in ("0.weight", "128 of 128", "progress/step", "train/loss"):
        assert part in shown


@pytest.mark.slow
def test_json_says_the_same(storage: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert evertrain("diff", "a", f"{storage}/other", "--storage", storage, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["same"]
    assert found["a"] == f"{storage}/a/checkpoints/step-00000005-a0001"
    assert "model/0.weight" in {one["name"] for one in found["tensors"]}
    # Both have trained for five steps at the same rates, to another accuracy.
    assert [one["name"] for one in found["values"]] == ["progress/best"]
    assert {"train/loss", "validation/loss"} <= {one["name"] for one in found["metrics"]}


def changed(storage: str, fork: str, **facts: Any) -> RunFolder:
    """A fork of the run `a` with another record."""
    folder = RunFolder(storage, "a")
    made = fork_checkpoint(folder, folder.checkpoints()[-1], fork)
    made.store.write(RUN_JSON, made.record().model_copy(update=facts).model_dump_json().encode())
    return made


def compared(
    storage: str, capsys: pytest.CaptureFixture[str], *runs: str
) -> tuple[int, dict[str, Any]]:
    code = evertrain("diff", *runs, "--storage", storage, "--json")
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.promise("diff")
@pytest.mark.slow
def test_runs_of_other_data_differ_though_their_bits_are_the_same(
    storage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = {"train": {"samples": 150, "digest": "1" * 64}}
    changed(storage, "more-data", datasets=data)
    code, found = compared(storage, capsys, "a", "more-data")
    assert (code, found["same"], found["tensors"]) == (1, False, [])
    assert {one["name"]: one["b"] for one in found["data"]} == {
        "datasets.train.samples": 150,
        "datasets.train.digest": "1" * 64,
    }
    assert evertrain("diff", "a", "more-data", "--storage", storage) == 1
    assert "datasets.train.digest" in capsys.readouterr().out
    # Of checkpoints, only what is in them is compared.
    newest = "step-00000005-a0001"
    assert compared(storage, capsys, f"a/{newest}", f"more-data/{newest}")[0] == 0


def with_files(storage: str, name: str, folder: str, **digests: str) -> None:
    """A run whose data are files of these names and digests, in a folder of its own."""
    found = tuple(
        FileRecord(name=f"{file}.url", size_bytes=3, digest=digest * 64, version=name)
        for file, digest in digests.items()
    )
    files = FileList(sources={"patients": SourceFiles(url=folder, folder=folder, files=found)})
    run = changed(storage, name)
    record = files_in_record(run.record(), files)
    assert record.files is not None
    run.store.write(key_of(record.files), files.to_json())
    run.store.write(RUN_JSON, record.model_dump_json().encode())


@pytest.mark.slow
def test_the_files_that_one_run_was_trained_on_and_the_other_not_are_named(
    storage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with_files(storage, "monday", "/new/1", a="1", b="2")
    with_files(storage, "again", "/new/2", a="1", b="2")
    with_files(storage, "tuesday", "/new/1", a="1", b="3", c="4")
    # Of the same content, wherever it is and whenever it came.
    assert compared(storage, capsys, "monday", "again")[0] == 0
    code, found = compared(storage, capsys, "monday", "tuesday")
    assert code == 1
    assert {one["name"]: one["kind"] for one in found["data"]} == {
        "sources.patients.num_files": "values",
        "sources.patients.size_bytes": "values",
        "sources.patients.digest": "values",
        "patients: b.url": "values",
        "patients: c.url": "only in B",
    }


@pytest.mark.promise("diff")
@pytest.mark.slow
def test_runs_that_were_asked_for_other_numbers_differ(
    storage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = RunFolder(storage, "a").record().config
    settings = {"settings": {"dropout": 0.25}, "clip_norm": 2.0}
    changed(storage, "other-settings", config=config.model_copy(update=settings))
    code, found = compared(storage, capsys, "a", "other-settings")
    assert code == 1
    assert {one["name"]: one["b"] for one in found["configuration"]} == {
        "settings.dropout": 0.25,
        "clip_norm": 2.0,
    }


@pytest.mark.promise("diff")
@pytest.mark.slow
def test_surroundings_and_what_may_change_in_a_run_are_told_and_do_not_count(
    storage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = RunFolder(storage, "a").record().config.model_copy(update={"keep_last": 3})
    changed(storage, "elsewhere", config=config, fingerprint={"torch": "2.14.0"})
    code, found = compared(storage, capsys, "a", "elsewhere")
    assert (code, found["same"]) == (0, True)
    assert [one["name"] for one in found["may_change"]] == ["keep_last"]
    assert [one["name"] for one in found["surroundings"]] == ["fingerprint.torch"]


@pytest.mark.promise("diff")
def test_a_run_without_a_report_is_compared_with_the_newest_checkpoint_of_one_that_has_it(
    storage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of `fit` and of `retrain`: the best of one and the newest of the other are not alike."""
    reported = changed(storage, "retrained")
    shutil.copytree(f"{storage}/a/checkpoints", f"{reported.url}/checkpoints", dirs_exist_ok=True)
    first = reported.checkpoints()[0]
    reported.store.write(REPORT_JSON, json.dumps({"best": {"name": str(first.name)}}).encode())
    assert evertrain("diff", "a", "retrained", "--storage", storage) == 0
    assert "the newest checkpoint of each run" in capsys.readouterr().out


@pytest.mark.slow
def test_of_runs_the_best_checkpoints_are_compared_and_the_newest_too(
    storage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("reported", "reported-too"):
        folder = RunFolder(storage, name)
        run(folder, checkpoint_backpressure="wait", checkpoint_every_steps=2, keep_last=9)
        first = folder.checkpoints()[0]
        folder.store.write(REPORT_JSON, json.dumps({"best": {"name": str(first.name)}}).encode())
    code, found = compared(storage, capsys, "reported", "reported-too")
    assert (code, found["same"], found["newest"]["tensors"]) == (0, True, [])
    assert found["a"].endswith("step-00000002-a0001")
    # Beside one that has no report both are compared by their newest.
    _, found = compared(storage, capsys, "reported", "a")
    assert (found["compared"], found["newest"]) == ("newest", None)
    assert (found["a"][-8:], found["b"][-8:]) == ("05-a0001", "05-a0001")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["diff", "a", "nowhere"], "there is no run 'nowhere'"),
        (["diff", "a", "a/step-3"], "run 'a' has no checkpoint 'step-3': see `evertrain ls /"),
        (["diff", "a", "a/checkpoints/step-3"], "run 'a' has no checkpoint 'step-3'"),
        (["diff", "a", "a/step-00000003-a0001"], "has no checkpoint step-00000003-a0001"),
        (["export", "nowhere", "x.safetensors"], "there is no run 'nowhere'"),
        (["verify-resume", "--steps", "3"], "greater than or equal to 8"),
        (["verify-resume", "--workload", "x"], "name it as package.module:Name"),
        (["verify-resume", "--workload", "x:Y", "--kill-after", "2"], "kill_after is 2"),
    ],
)
def test_bad_input_is_one_line_with_code_2(
    arguments: list[str], message: str, storage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = [] if arguments[0] == "verify-resume" else ["--storage", storage]
    assert evertrain(*arguments, *place) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.slow
def test_altered_bytes_cannot_be_compared(
    storage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(storage, "a")
    fork = fork_checkpoint(folder, folder.checkpoints()[-1], "altered")
    key = f"{fork.checkpoints()[-1].key}/{MODEL_FILE}"
    data = bytearray(fork.store.read(key))
    data[-1] ^= 1
    fork.store.write(key, bytes(data))
    for command in (["diff", "a", "altered"], ["export", "altered", str(tmp_path)]):
        assert evertrain(*command, "--storage", storage) == 2
        assert "digest" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.promise("verify-code")
def test_verify_ends_with_code_1_if_a_byte_is_bad(
    storage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(Path(storage, "a"), tmp_path / "a")
    assert evertrain("verify", "a", "--storage", str(tmp_path)) == 0
    newest = RunFolder(str(tmp_path), "a").checkpoints()[-1]
    file = Path(tmp_path, "a", newest.key, MODEL_FILE)
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    capsys.readouterr()
    assert evertrain("verify", "a", "--storage", str(tmp_path)) == 1
    shown = capsys.readouterr()
    assert f"{MODEL_FILE}" in shown.out
    assert "1 of 4 parts" in shown.err


@pytest.mark.promise("export")
def test_export_prints_what_it_wrote_and_overwrites_only_if_told(
    storage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(storage, "a")
    best = folder.checkpoints()[0].name
    file = tmp_path / "deep" / "weights.safetensors"
    export = ("export", "a", str(file), "--storage", storage, "--json")

    assert evertrain(*export) == 0
    newest = json.loads(capsys.readouterr().out)
    assert newest["checkpoint"].endswith("step-00000005-a0001")
    assert newest["size_bytes"] == file.stat().st_size
    assert newest["digest"] == blake3(file.read_bytes()).hexdigest()

    assert evertrain(*export) == 2
    assert "--force" in capsys.readouterr().err
    folder.store.write(REPORT_JSON, json.dumps({"best": {"name": str(best)}}).encode())
    assert evertrain(*export, "--force") == 0
    assert json.loads(capsys.readouterr().out)["checkpoint"].endswith(str(best))
    assert blake3(file.read_bytes()).hexdigest() != newest["digest"]


def verdict(
    resumed: FirstDifference | None = None,
    plain: FirstDifference | None = None,
    in_place: FirstDifference | None = None,
    **found: Any,
) -> ResumeVerdict:
    compared = {"steps": [2, 4, 6], "num_entries": 10, "num_validations": 2}
    comparison = RunsComparison(**compared | {"metric": None, "state": None} | found)
    return ResumeVerdict(
        identical=comparison.is_same,
        workload="mine:Model",
        workers=2,
        workers_after=1,
        killed_after=5,
        resumed_after=4,
        comparison=comparison,
        resumed_differs=resumed,
        in_place=comparison,
        in_place_differs=in_place,
        not_in_place="",
        plain_differs=plain,
        not_plain="",
    )


def test_the_verdict_tells_the_story(capsys: pytest.CaptureFixture[str]) -> None:
    print_verdict(verdict())
    shown = capsys.readouterr().out
    assert shown.startswith("identical  mine:Model: 2 workers, killed after step 5, resumed by 1")
    assert shown.endswith(
        "\nplain      Plain PyTorch, without evertrain's engine, gives the same in each step.\n"
    )


@pytest.mark.promise("verify-resume")
def test_what_differs_only_in_place_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    print_verdict(verdict(in_place=FirstDifference(step=6, name="model/0.weight")))
    identical, in_place, plain, _, cause = capsys.readouterr().out.splitlines()
    assert identical.startswith("identical  ")
    assert in_place == "not in place  With a rank that was replaced, since step 6: model/0.weight"
    assert plain.startswith("plain  ")
    assert cause.startswith("All processes anew give the same")


@pytest.mark.promise("verify-resume")
def test_two_runs_that_are_equally_wrong_are_told_apart_from_right_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_verdict(verdict(plain=FirstDifference(step=3, name="loss/1/0")))
    identical, _, plain, _, cause = capsys.readouterr().out.splitlines()
    assert identical.startswith("identical  ")
    assert (
        plain == "not plain  Plain PyTorch gives another result, since step 3: the loss of shard 1"
    )
    assert cause.startswith("The batch is the same, and the loss is not")


@pytest.mark.promise("verify-resume")
def test_the_verdict_names_the_first_difference(capsys: pytest.CaptureFixture[str]) -> None:
    difference = TensorDifference(
        name="model/0.weight", kind="values", a=0.5, b=0.25, index=[1, 0],
        num_elements=6, num_different=2, max_difference=0.25,
    )  # fmt: skip
    state = Comparison(num_tensors=3, tensors=[difference], values=[], metrics=[])
    first = FirstDifference(step=5, name="batch/1/0/inputs")
    metric = MetricDifference(step=6, name="train/loss", a=1.0, b=1.5)
    print_verdict(verdict(first, metric=metric, state=state))
    shown = capsys.readouterr().out
    assert "since      step 5: 'inputs' in the batch of shard 1" in shown
    assert "`dataset` or `prepare` depends on what the process did before" in shown
    assert "first metric  step 6, train/loss: A 1.0, B 1.5" in shown
    assert "first tensor  step 6, model/0.weight [1, 0]: A 0.5, B 0.25" in shown
    assert "1 of 3 tensors" in shown


def test_a_run_is_listed_by_its_name_and_a_folder_by_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(RunFolder(str(tmp_path), "alone"), max_steps=2)
    monkeypatch.setenv("EVERTRAIN_STORAGE", str(tmp_path))
    assert evertrain("ls", "alone") == 0
    assert "step-00000002-a0001" in capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    assert evertrain("ls", ".") == 0
    assert "alone" in capsys.readouterr().out
    assert evertrain("ls", "nobody") == 2
    assert "there is nothing at" in capsys.readouterr().err


def test_a_run_is_not_extended_to_less_than_it_has(
    storage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evertrain("runs", "extend", "a", "--epochs", "1", "--storage", storage) == 2
    assert "run 'a' has 1 epochs already: ask for more" in capsys.readouterr().err
