"""Training functions that were written for Ray Train: they run on Ray Train itself.

seam                the one file with private names of Ray: the worker's calls, seen and carried out
source              a folder that a rank reports: where it is read, and what becomes of it
trainer             a function, or a factory's trainer, made ready for one attempt
reporter            a rank's reports, in their order, each settled with the other ranks
committer           rank 0's side: one checkpoint of the run folder for each reported folder
channel             the ranks' messages, by the driver's store
folder              the files of a reported folder: which rank stores which
plain               metrics as plain numbers and texts
timing              the times of all of these
"""
