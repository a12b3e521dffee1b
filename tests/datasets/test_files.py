"""Which files a workload's URL names: a file, a folder, a glob, on any storage."""

from __future__ import annotations

import posixpath
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from train_core.datasets.files import is_data, state_of
from train_core.datasets.sources import PinnedFiles, split_glob
from train_core.errors import DataError
from train_core.storage.objects.digest_algorithm import digest_of
from train_core.storage.objects.store import Store
from train_core.storage.records.data_files import FileList, FileRecord, SourceFiles

PART = st.text("ab._-1[]?", min_size=1, max_size=4).filter(lambda part: part not in (".", ".."))
NAMES = st.lists(st.lists(PART, min_size=1, max_size=3).map("/".join), max_size=8)


def names(url: str) -> list[str]:
    return [file.name for file in PinnedFiles.listed({"x": url}).recorded.sources["x"].files]


def write(url: str, *files: str) -> None:
    for file in files:
        Store(url).write(file, file.encode())


@settings(max_examples=40)
@given(NAMES)
def test_a_folder_is_all_data_below_it_sorted(files: list[str]) -> None:
    folders = {posixpath.dirname(file) for file in files}
    above = {part for one in folders for part in _ways(one)}
    files = sorted({file for file in files if file not in above})
    expected = [file for file in files if is_data(file)]
    with tempfile.TemporaryDirectory() as folder:
        for file in files:
            Path(folder, posixpath.dirname(file)).mkdir(parents=True, exist_ok=True)
            Path(folder, file).write_text(file)
        if not expected:
            with pytest.raises(DataError, match="source 'x': nothing is at"):
                names(folder)
            return
        pinned = PinnedFiles.listed({"x": folder})
        assert [file.name for file in pinned.recorded.sources["x"].files] == expected
        # In another process, from the document.
        again = PinnedFiles(FileList.model_validate_json(pinned.recorded.to_json()))
        assert again.files("x") == pinned.files("x")
        for file, name in zip(again.files("x"), expected, strict=True):
            assert file.read() == name.encode()
            with file.open() as opened:
                assert opened.read() == name.encode()


def _ways(folder: str) -> list[str]:
    parts = folder.split("/")
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]


@given(st.lists(st.text("ab*?[].", min_size=1, max_size=4), min_size=1, max_size=4))
def test_a_glob_begins_with_the_first_part_that_has_a_wildcard(parts: list[str]) -> None:
    for root in ("/", "s3://bucket/", ""):
        url = root + "/".join(parts)
        folder, pattern = split_glob(url)
        assert not re.search(r"[*?\[]", folder)
        if pattern:
            assert re.search(r"[*?\[]", pattern.split("/")[0])
            assert posixpath.normpath(posixpath.join(folder, pattern)) == posixpath.normpath(url)
        else:
            assert folder == url


@pytest.mark.promise("sources")
def test_files_folders_and_globs_are_listed_on_any_storage(storage_url: str) -> None:
    write(storage_url, "a.csv", "b.txt", "_SUCCESS", ".tmp-1", "deep/c.csv", "deep/_x/d.csv")
    assert names(storage_url) == ["a.csv", "b.txt", "deep/c.csv"]
    assert names(f"{storage_url}/") == ["a.csv", "b.txt", "deep/c.csv"]
    assert names(f"{storage_url}/deep") == ["c.csv"]
    assert names(f"{storage_url}/a.csv") == ["a.csv"]
    assert names(f"{storage_url}/_SUCCESS") == ["_SUCCESS"]
    assert names(f"{storage_url}/*.csv") == ["a.csv"]
    assert names(f"{storage_url}/**/*.csv") == ["a.csv", "deep/c.csv"]
    assert names(f"{storage_url}/*/c.???") == ["deep/c.csv"]
    with pytest.raises(DataError, match=r"nothing is at .*/none: give the URL"):
        names(f"{storage_url}/none")


def test_a_folder_is_in_another_state_when_data_came_anywhere_below_it(storage_url: str) -> None:
    write(storage_url, "a.csv", "deep/c.csv")
    before = state_of(storage_url)
    write(storage_url, "deep/_SUCCESS", ".tmp-1")
    assert before == state_of(storage_url) != ""
    write(storage_url, "deep/er/d.csv")
    assert state_of(storage_url) != before


def test_sources_say_their_files_addresses_and_contents(storage_url: str) -> None:
    write(storage_url, "in/a", "in/b")
    one, other = PinnedFiles.listed({"x": f"{storage_url}/in"}).files("x")
    assert one.url == Store(storage_url).uri("in/a")
    assert (one.size_bytes, one.digest) == (4, digest_of(b"in/a"))
    assert other.read() == b"in/b"


def test_a_relative_path_is_recorded_as_it_is_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(str(tmp_path), "data/a.csv")
    monkeypatch.chdir(tmp_path)
    for url in ("data", "data/*.csv", "data/a.csv"):
        pinned = PinnedFiles.listed({"x": url}).recorded.sources["x"]
        assert pinned.folder == f"{tmp_path}/data"
        assert pinned.url == f"{tmp_path}/{url}"


def test_a_folder_of_a_disk_may_be_called_like_a_glob(tmp_path: Path) -> None:
    write(str(tmp_path), "day[1]/a.csv", "day1/b.csv")
    assert names(f"{tmp_path}/day[1]") == ["a.csv"]


def test_a_source_that_was_never_named_is_an_error_that_names_the_others(tmp_path: Path) -> None:
    write(str(tmp_path), "a")
    with pytest.raises(ValueError, match=r"no source 'y' is recorded: sources\(\) named x"):
        PinnedFiles.listed({"x": str(tmp_path)}).files("y")


@pytest.mark.slow
def test_the_list_of_a_great_many_files_can_be_stored_and_read(tmp_path: Path) -> None:
    """More than any document that is read by every command may have."""
    files = tuple(
        FileRecord(
            name=f"{'n' * 60}/{n:08d}", size_bytes=n, digest=digest_of(b""), version="1" * 19
        )
        for n in range(80_000)
    )
    listed = FileList(sources={"x": SourceFiles(url="u", folder="u", files=files)})
    assert listed.entry().size_bytes > 16 * 2**20
    assert FileList.model_validate_json(listed.to_json()) == listed
