"""A folder on any storage: a disk, S3, whatever fsspec reaches."""
