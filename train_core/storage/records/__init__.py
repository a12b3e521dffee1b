"""What lies in a run folder: names, documents, files.

names           the names in a run folder, built and parsed
documents       small JSON objects, read strictly and never trusted

run_record      run.json: what a run was created with
amendments      `asked/`: what was asked of the run later
data_files      the files that a workload names: sums for run.json, lists in `data/`
journal         the journal: every metric of every step, in segments of JSON lines
tensor_file     the safetensors format: where each tensor lies in a file
manifest        the manifest: one JSON object, created last, that makes a result exist
verified_files  files that a manifest vouches for: stored, read, copied and checked
quarantine      `quarantined.json`: why a checkpoint is used no more
"""
