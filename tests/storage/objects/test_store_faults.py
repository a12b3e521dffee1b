"""A real S3 server behind a network that fails on schedule."""

from __future__ import annotations

import math
import os
import random
import re
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest
import s3fs
from blake3 import blake3

from tests.storage.doubles.fault_proxy import Fault, FaultProxy, Kind
from train_core.errors import StorageError
from train_core.storage.objects.retry_policy import RetryPolicy
from train_core.storage.objects.store import Store

pytestmark = pytest.mark.s3

PARTS = os.urandom(17 * 2**20)  # two of obstore's parts, and a rest
LARGE = 120 * 2**20  # several parts
PATIENCE = RetryPolicy(budget_s=30, silence_s=1)
IMPATIENCE = RetryPolicy(budget_s=4, silence_s=0.5)
DELETED_NOTHING = b"""<?xml version="1.0" encoding="UTF-8"?>
<DeleteResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Error><Key>object</Key>
<Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error></DeleteResult>"""


@pytest.fixture
def proxy(near: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A proxy to which new stores go."""
    with FaultProxy(os.environ["AWS_ENDPOINT_URL"]) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        # Clients that exist know the server's own address, those to come shall not be kept.
        s3fs.S3FileSystem.clear_instance_cache()
        yield proxy
        s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def near(object_store: str) -> Store:
    """The store without the proxy: what is really there."""
    store = Store(f"{object_store}/{uuid.uuid4().hex}")
    store.exists("")  # connects
    return store


@pytest.fixture
def far(near: Store, proxy: FaultProxy) -> Store:
    """The same store through the proxy."""
    return Store(near.url, PATIENCE)


def operations(
    far: Store, near: Store, tmp_path: Path, parts: bytes = PARTS
) -> dict[str, Callable[[], None]]:
    """Each operation, with a look at its outcome through the server's own door."""
    near.write("object", b"some bytes")
    (tmp_path / "file").write_bytes(b"a file's bytes")

    def read() -> None:
        assert far.read("object") == b"some bytes"
        assert b"".join(far.chunks("object", 4)) == b"some bytes"

    def write() -> None:
        far.write("written", b"other bytes")
        assert near.read("written") == b"other bytes"

    def create() -> None:
        far.create("created", b"own bytes")
        assert near.read("created") == b"own bytes"

    def put() -> None:
        digest = far.put("put", memoryview(parts))
        assert digest == blake3(parts).hexdigest()
        assert near.read("put") == parts

    def load() -> None:
        near.write("parts", parts)
        assert far.load("parts", len(parts)) == (parts, blake3(parts).hexdigest())

    def upload() -> None:
        far.upload(tmp_path / "file", "uploaded")
        assert near.read("uploaded") == b"a file's bytes"

    def download() -> None:
        far.download("object", tmp_path / "downloaded")
        assert (tmp_path / "downloaded").read_bytes() == b"some bytes"

    def copy() -> None:
        far.copy("object", far, "copied")
        assert near.read("copied") == b"some bytes"

    def list_() -> None:
        assert far.names() == ["object"]
        assert far.exists("object")
        assert not far.exists("none")

    def delete() -> None:
        near.write("folder/deleted", b"")
        far.delete("folder")
        assert near.names() == ["object"]

    return {
        "read": read,
        "write": write,
        "create": create,
        "put": put,
        "load": load,
        "upload": upload,
        "download": download,
        "copy": copy,
        "list": list_,
        "delete": delete,
    }


OPERATIONS = [
    "read",
    "write",
    "create",
    "put",
    "load",
    "upload",
    "download",
    "copy",
    "list",
    "delete",
]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("kind", Kind)
def test_an_operation_survives_a_fault(
    far: Store, near: Store, proxy: FaultProxy, kind: Kind, operation: str, tmp_path: Path
) -> None:
    act = operations(far, near, tmp_path)[operation]
    proxy.schedule.add(Fault(kind))
    before = random.getstate()
    act()
    assert len(proxy.schedule.hits) == 1
    # A training has seeded it, and its model may draw from it while a thread tries again.
    assert random.getstate() == before


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_survives_several_faults(
    far: Store, near: Store, proxy: FaultProxy, operation: str, tmp_path: Path
) -> None:
    act = operations(far, near, tmp_path)[operation]
    # aiohttp repeats some requests once, on a new connection.
    proxy.schedule.add(Fault(Kind.RESET_REQUEST, times=3))
    act()
    assert len(proxy.schedule.hits) == 3


@pytest.mark.parametrize(
    ("kind", "operation"),
    [
        *product([Kind.REFUSE], OPERATIONS),
        *product([Kind.STALL_REQUEST, Kind.RESET_ANSWER], ["read", "create", "put", "load"]),
    ],
)
def test_a_server_that_goes_on_failing_is_named_within_the_budget(
    far: Store, near: Store, proxy: FaultProxy, kind: Kind, operation: str, tmp_path: Path
) -> None:
    act = operations(Store(near.url, IMPATIENCE), near, tmp_path, parts=b"small")[operation]
    proxy.schedule.add(Fault(kind, times=math.inf))
    begin = time.monotonic()
    with pytest.raises(
        # Four seconds, and what a machine that is busy adds; retries that multiply take minutes.
        StorageError,
        match=rf"^cannot \w+ {near.url}\S*: .+ \(given up after \d?\d s, in attempt",
    ) as raised:
        act()
    assert time.monotonic() - begin < 60
    # A machine too busy to hear one answer in four seconds has none to name.
    if kind is Kind.REFUSE and "in attempt 1)" not in str(raised.value):
        # The answer to HEAD has no body that could say more.
        assert re.search("Reduce your request rate|Service Unavailable", str(raised.value))


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        ("403 Forbidden", "AccessDenied", StorageError),
        ("404 Not Found", "NoSuchBucket", StorageError),
        ("400 Bad Request", "InvalidRequest", StorageError),
        ("501 Not Implemented", "NotImplemented", StorageError),
    ],
)
def test_what_does_not_pass_by_itself_is_not_tried_again(
    far: Store, proxy: FaultProxy, status: str, code: str, error: type[Exception]
) -> None:
    body = f"<Error><Code>{code}</Code><Message>No.</Message></Error>".encode()
    proxy.schedule.add(Fault(Kind.REFUSE, times=math.inf, status=status, body=body))
    with pytest.raises(error, match=f"^cannot write {far.url}/object: ") as raised:
        far.write("object", b"")
    assert "given up" not in str(raised.value)
    assert len(proxy.schedule.hits) == 1


@pytest.mark.parametrize(
    ("status", "code"), [("403 Forbidden", "AccessDenied"), ("400 Bad Request", "InvalidRequest")]
)
def test_a_large_object_is_not_put_or_loaded_again_where_that_is_of_no_use(
    far: Store, near: Store, proxy: FaultProxy, status: str, code: str
) -> None:
    near.write("object", b"bytes")
    body = f"<Error><Code>{code}</Code><Message>No.</Message></Error>".encode()
    proxy.schedule.add(Fault(Kind.REFUSE, times=math.inf, status=status, body=body))
    for act in (
        lambda: far.put("put", memoryview(b"bytes")),
        lambda: far.load("object", 5),
    ):
        proxy.schedule.hits.clear()
        with pytest.raises(
            StorageError, match=f"^cannot (write|read) {far.url}/.*{code}"
        ) as raised:
            act()
        assert "given up" not in str(raised.value)
        assert len(proxy.schedule.hits) == 1


@pytest.mark.parametrize("kind", [Kind.LOSE_ANSWER, Kind.HOLD_ANSWER, Kind.RESET_REQUEST])
def test_of_sixteen_whose_answers_are_lost_one_creates_the_object(
    far: Store, near: Store, proxy: FaultProxy, kind: Kind
) -> None:
    proxy.schedule.add(Fault(kind, method="PUT", times=16))

    def create(racer: int) -> bool:
        try:
            far.create("race", f"{racer}".encode())
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(16) as threads:
        won = list(threads.map(create, range(16)))
    assert len(proxy.schedule.hits) == 16
    assert won.count(True) == 1
    assert near.read("race") == f"{won.index(True)}".encode()


def test_a_create_that_meets_another_one_under_way_asks_again(
    far: Store, near: Store, proxy: FaultProxy
) -> None:
    body = b"<Error><Code>ConditionalRequestConflict</Code><Message>Again.</Message></Error>"
    proxy.schedule.add(Fault(Kind.REFUSE, status="409 Conflict", body=body, times=2))
    far.create("object", b"mine")
    assert near.read("object") == b"mine"
    assert len(proxy.schedule.hits) == 2


def test_what_the_server_left_in_place_is_deleted_again(
    far: Store, near: Store, proxy: FaultProxy
) -> None:
    near.write("object", b"")
    proxy.schedule.add(
        Fault(Kind.REFUSE, method="POST", target="delete", status="200 OK", body=DELETED_NOTHING)
    )
    far.delete("object")
    assert proxy.schedule.hits
    assert not near.exists("object")


LARGE_FAULTS = [
    Fault(Kind.REFUSE, target="partNumber=2", times=4),
    Fault(Kind.STALL_REQUEST, target="partNumber=1"),
    Fault(Kind.LOSE_ANSWER, method="POST", target="uploadId="),
]


@pytest.mark.parametrize("fault", LARGE_FAULTS, ids=lambda fault: f"{fault.kind}-{fault.target}")
def test_a_large_upload_survives_a_fault(
    far: Store, near: Store, proxy: FaultProxy, fault: Fault, tmp_path: Path
) -> None:
    data = os.urandom(LARGE)
    (tmp_path / "sent").write_bytes(data)
    proxy.schedule.add(fault)
    far.upload(tmp_path / "sent", "large")
    assert proxy.schedule.hits
    assert near.read("large") == data


@pytest.mark.parametrize("fault", LARGE_FAULTS, ids=lambda fault: f"{fault.kind}-{fault.target}")
def test_a_large_put_survives_a_fault(
    far: Store, near: Store, proxy: FaultProxy, fault: Fault
) -> None:
    data = os.urandom(LARGE)
    proxy.schedule.add(fault)
    assert far.put("large", memoryview(data)) == blake3(data).hexdigest()
    assert proxy.schedule.hits
    assert near.read("large") == data


@pytest.mark.parametrize("kind", [Kind.REFUSE, Kind.TRUNCATE_ANSWER, Kind.RESET_ANSWER])
def test_a_large_load_survives_faults_in_its_middle(
    far: Store, near: Store, proxy: FaultProxy, kind: Kind
) -> None:
    data = os.urandom(LARGE)
    near.write("large", data)
    # Of one part, more often than it is asked for at once: the whole is asked for again.
    proxy.schedule.add(Fault(kind, method="GET", target="large", skip=2, times=20))
    assert far.load("large", LARGE) == (data, blake3(data).hexdigest())
    assert len(proxy.schedule.hits) == 20


@pytest.mark.parametrize("kind", [Kind.TRUNCATE_ANSWER, Kind.HOLD_ANSWER])
def test_a_large_download_survives_a_fault_in_its_middle(
    far: Store, near: Store, proxy: FaultProxy, kind: Kind, tmp_path: Path
) -> None:
    data = os.urandom(LARGE)
    near.write("large", data)
    proxy.schedule.add(Fault(kind, method="GET", target="large", skip=2))
    assert far.download("large", tmp_path / "received") == blake3(data).hexdigest()
    assert len(proxy.schedule.hits) == 1
    assert (tmp_path / "received").read_bytes() == data
    proxy.schedule.add(Fault(kind, method="GET", target="large", skip=1))
    assert far.read("large") == data
    assert len(proxy.schedule.hits) == 2


def test_a_large_copy_survives_faults(far: Store, near: Store, proxy: FaultProxy) -> None:
    data = os.urandom(160 * 2**20)  # more than s3fs copies in one request
    near.write("large", data)
    proxy.schedule.add(Fault(Kind.REFUSE, target="partNumber=2", times=4))
    proxy.schedule.add(Fault(Kind.LOSE_ANSWER, target="partNumber=1"))
    far.copy("large", far.child("below"), "copy")
    assert len(proxy.schedule.hits) == 5
    assert near.read("below/copy") == data
