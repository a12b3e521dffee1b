"""The backends of a store: a local disk, S3 and its like, and others of fsspec."""
