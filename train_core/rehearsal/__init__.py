"""A workload is tried on a few samples before its first step."""
