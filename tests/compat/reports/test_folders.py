from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train_core.errors import WorkloadError
from train_core.functions.reports.reported_files import LocalFolder, assign_files, map_file

NAMES = st.lists(st.sampled_from("abcdef"), unique=True)


@given(st.lists(st.tuples(st.none() | NAMES, st.sampled_from("xyz")), min_size=1, max_size=4))
def test_each_name_is_stored_once_and_by_the_first_rank_that_has_it(
    reported: list[tuple[list[str] | None, str]],
) -> None:
    files, places = [one for one, _ in reported], [place for _, place in reported]
    assigned, collisions = assign_files(files, places)
    stored = [name for of_rank in assigned for name in of_rank]
    assert len(stored) == len(set(stored))
    every = [name for of_rank in files for name in of_rank or ()]
    assert set(stored) == set(every)
    # Two ranks may report one folder.
    assert collisions == {
        name
        for name in every
        if len({place for of_rank, place in reported if name in (of_rank or ())}) > 1
    }
    for name in stored:
        owner = next(rank for rank, of_rank in enumerate(assigned) if name in of_rank)
        assert owner == next(rank for rank, of_rank in enumerate(files) if name in (of_rank or ()))


def test_files_are_named_by_their_paths(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    for name in ("model-rank=0.pt", "deep/er/a b.bin", "deep/.hidden", "manifest.json"):
        (tmp_path / name).write_text(name)
    (tmp_path / "empty").mkdir()
    expected = ["deep/.hidden", "deep/er/a b.bin", "manifest.json", "model-rank=0.pt"]
    assert LocalFolder(tmp_path).names() == expected


@pytest.mark.parametrize("name", ["new\nline", "back\\slash"])
def test_a_name_that_not_every_storage_can_have_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(WorkloadError, match="cannot be a checkpoint"):
        LocalFolder(tmp_path).names()


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("file", "missing"):
        with pytest.raises(WorkloadError, match="is no folder"):
            LocalFolder(tmp_path / name).names()


def test_linked_folders_are_followed_but_not_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "weights.bin").touch()
    reported = tmp_path / "reported"
    reported.mkdir()
    (reported / "linked").symlink_to(tmp_path / "elsewhere")
    assert LocalFolder(reported).names() == ["linked/weights.bin"]
    (reported / "back").symlink_to(reported)
    with pytest.raises(WorkloadError, match="back leads back into it"):
        LocalFolder(reported).names()


def test_a_mapped_file_has_its_bytes(tmp_path: Path) -> None:
    for number, data in enumerate((b"", b"1", bytes(range(256)) * 999)):
        path = tmp_path / str(number)
        path.write_bytes(data)
        assert bytes(map_file(path)) == data
