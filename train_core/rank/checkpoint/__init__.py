"""Checkpoints of a training: taken, written, read and continued.

Taken and written:

checkpointer     takes checkpoints by the schedule, the same ones on all ranks
state            all that the next step depends on, by parts: captured and restored
progress         the part of the state that is numbers: the position, the epoch's sums
packing          a nested state as JSON and named tensors, and back again
snapshot         a copy of the state, laid out in memory as the files that it will be
device_copy      the copy into host memory; from a GPU it goes on beside the next step
journal_buffer   journal entries that no checkpoint covers yet, and live.json
storing_thread   stores this rank's files in the background and, on rank 0, commits

Read and continued:

restore          chooses the checkpoint to resume from: the newest that verifies
reader           reads a checkpoint's files, verifies them and reassembles split tensors
row_shards       tensors of which each rank has some rows, and how they become whole again
kept             the state that a process keeps of a broken attempt, for the next attempt
init_from        the weights that a new run takes from elsewhere
verified_folder  a reported folder on this node: verified, and downloaded once
"""
