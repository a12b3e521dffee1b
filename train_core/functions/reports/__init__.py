"""The reports of a training function: from each rank's folder to one committed checkpoint.

reporter         a rank's reports, in their order, each settled with the other ranks
channel          the ranks' messages, by the driver's store
committer        rank 0's side: one checkpoint of the run folder for each reported folder
reported_folder  a folder that a rank reports: where it is read, and what becomes of it
reported_files   its files: which there are, and which rank stores which
plain_metrics    metrics as plain numbers and texts
"""
