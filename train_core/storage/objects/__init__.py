"""A folder on any storage: a disk, S3, whatever fsspec reaches.

store               a folder to be read and changed: put, create, delete
store_reader        the reading half of a store: objects and listings
store_folder        the folder's address, and operations with retries
retry_policy        how long storage is waited for: errors that pass are tried again
backends/           the operations of a kind of storage: a disk, S3 and its like, others

storage_protocols   which of fsspec's protocols can be a storage
reads_in_parts      moves a large object in parts, each hashed while it is in the cache
ranges              an object as a file that is read piece by piece
regular_files       regular files below a folder, opened without following links
unfinished_uploads  uploads in parts to S3 that are not finished
digest_algorithm    the digest of all that is stored: BLAKE3
"""
