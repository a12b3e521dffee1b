"""Raw data: what a dataset is, arrays in memory, and files whose state a run records."""
