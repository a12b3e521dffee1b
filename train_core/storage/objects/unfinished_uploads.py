"""Uploads in parts to S3 that are not finished: no listing shows their parts, which cost room."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Upload:
    """An upload that was begun, and neither finished nor given up."""

    key: str
    """Of the object that it would become, in the folder."""
    id: str
    """The server's name for it: two uploads of one object are two."""


def unfinished(ask: Callable[..., Any], folder: str) -> Iterator[Upload]:
    """The unfinished uploads below the folder, by its path on S3."""
    bucket, _, above = folder.strip("/").partition("/")
    above = f"{above}/" if above else ""
    after: dict[str, str] = {}
    while True:
        page = ask("call_s3", "list_multipart_uploads", Bucket=bucket, Prefix=above, **after)
        for found in page.get("Uploads", ()):
            key = found["Key"].removeprefix(above)
            # Others may write to the bucket, too: such a key is none of ours.
            if not {"", ".."} & set(key.split("/")):
                yield Upload(key, found["UploadId"])
        if not page.get("IsTruncated"):
            return
        after = {
            "KeyMarker": page["NextKeyMarker"],
            "UploadIdMarker": page["NextUploadIdMarker"],
        }


def abort(ask: Callable[..., Any], path: str, upload_id: str) -> None:
    """Give the upload up, and have the server delete its parts; fine if it is gone."""
    bucket, _, name = path.partition("/")
    try:
        ask("call_s3", "abort_multipart_upload", Bucket=bucket, Key=name, UploadId=upload_id)
    except FileNotFoundError:
        return
