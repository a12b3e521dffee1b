"""The backends of a store: a local disk, S3 and its like, and others of fsspec.

* `fsspec_backend`: the operations that a store needs, by any filesystem of fsspec's
* `disk`: local disks, and what is mounted as one
* `disk_files`: a local disk's files: whole, durable, never outside of the folder
* `s3`: S3 and its like: small objects by s3fs, large ones by obstore
* `s3_client`: obstore, the client for large objects
"""
