"""Rights to a run and messages about it: lease, pins, requests to stop, the mailbox of a job."""
