"""A kind of storage that is neither a disk nor, as far as evertrain can tell, S3."""

from __future__ import annotations

import s3fs


class Elsewhere(s3fs.S3FileSystem):
    """An object store that is spoken to through fsspec alone, as `elsewhere://bucket/key`."""

    protocol = ("elsewhere",)
