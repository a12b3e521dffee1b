"""What carries a flow's calls to its driver: a pipe to a process here, or the mailbox of a job."""
