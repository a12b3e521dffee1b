"""The contract of Store on a storage that it knows by fsspec alone: neither a disk nor S3.

The tests are those of the other storages, run here on a filesystem that is installed as any other
package's is: by an entry point, which every process finds.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import fsspec
import pytest

from tests.storage.doubles import elsewhere
from tests.storage.objects.test_reads_in_parts import (  # noqa: F401 (run here again)
    test_a_missing_object_is_not_loaded,
    test_objects_are_put_and_loaded_at_the_same_time,
    test_what_is_larger_or_smaller_than_the_object_is_given_no_digest,
    test_what_is_loaded_may_be_changed_and_the_object_stays_as_it_is,
    test_what_is_put_is_read_from_where_it_lies,
    test_what_was_put_is_whole_and_hashed_on_its_way_in_and_out,
)
from tests.storage.objects.test_store import (  # noqa: F401 (run here again)
    test_a_large_file_comes_back_the_same,
    test_a_missing_object_is_named_by_its_error,
    test_a_probe_leaves_nothing,
    test_a_store_travels_to_other_processes,
    test_an_object_is_copied_within_its_storage,
    test_an_object_is_created_once,
    test_deleting_takes_the_folder_and_not_its_neighbours,
    test_deleting_what_is_gone_is_fine,
    test_names_are_those_directly_below_and_sorted,
    test_of_sixteen_racers_in_four_processes_one_wins,
    test_what_another_process_wrote_and_deleted_is_seen_at_once,
    test_what_is_written_is_read_back,
    test_where_nothing_is_there_are_no_names,
    test_writing_again_replaces_the_object,
)
from train_core.storage.objects.backends import s3 as s3_backend
from train_core.storage.objects.store import Store

pytestmark = pytest.mark.s3
ROOT = Path(__file__).parents[3]
CLASS = f"{elsewhere.__name__}:{elsewhere.Elsewhere.__name__}"


@pytest.fixture
def store(object_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A folder on the S3 server, by a filesystem that does not say that it is one."""
    package = tmp_path / "packages" / "elsewhere-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(f"[fsspec.specs]\nelsewhere = {CLASS}\n")
    found = [str(package.parent), str(ROOT), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, found)))
    # This process looked for packages before.
    fsspec.register_implementation("elsewhere", elsewhere.Elsewhere, clobber=True)
    bucket = object_store.removeprefix("s3://")
    return Store(f"elsewhere://{bucket}/{uuid.uuid4().hex}")


@pytest.mark.promise("any-storage")
def test_it_is_spoken_to_through_fsspec_alone(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(store.fs, elsewhere.Elsewhere)
    # Nothing here may go the way of S3, which needs the bucket's name.
    monkeypatch.delattr(s3_backend, "bucket_of")
    digest = store.put("object", memoryview(b"bytes"))
    assert store.load("object", 5) == (b"bytes", digest)
    assert store.unfinished_uploads() == []
