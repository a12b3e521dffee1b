"""The driver as a job of a cluster: the caller's side, and the job's.

A call goes from `remote_stages` through the mailbox in the run folder
(`storage/coordination/job_mailbox.py`) to `mailbox_transport` in the job, and from there to the
driver's `server` and `stages`.
"""
