"""The driver as a job of a cluster: the caller's side, and the job's."""
