"""The samples of a training: their order, their split into shards, and their random numbers."""
