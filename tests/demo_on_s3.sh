#!/usr/bin/env bash
# The demo with its runs on a real S3 server, which is started for it and taken away after it.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'tests/object-store.sh destroy "$folder"' EXIT
tests/object-store.sh start "$folder"
eval "$(tests/object-store.sh env "$folder")"
.venv/bin/python -c 'import s3fs; s3fs.S3FileSystem().mkdir("evertrain-demo")'
EVERTRAIN_STORAGE=s3://evertrain-demo/runs make demo
