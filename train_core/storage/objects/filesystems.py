"""The filesystem of fsspec behind a storage, set up to be waited for, and what kind it is."""

from __future__ import annotations

import fsspec

from train_core.storage.objects.retries import RetryPolicy, s3_config

LOCAL, S3 = ("file", "local"), ("s3", "s3a")
"""Protocols; every other one is spoken to through fsspec alone."""


def filesystem(protocol: str, retry_policy: RetryPolicy) -> fsspec.AbstractFileSystem:
    """The filesystem. Raises ValueError or ImportError where there is none."""
    if protocol in LOCAL:
        return fsspec.filesystem(protocol)
    # A listing must show what other processes wrote a moment ago.
    fresh = {"use_listings_cache": False}
    if protocol not in S3:
        return fsspec.filesystem(protocol, **fresh)
    found = fsspec.filesystem(protocol, **fresh, config_kwargs=s3_config(retry_policy))
    found.retries = 1
    return found
