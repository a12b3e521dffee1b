"""The driver as a job of a cluster: the caller's side, and the job's.

A task's call goes from the flow's process (`tasks/driver_session/session.py`,
`client/driver_handle.py`) through a pipe to the driver on that machine
(`engine/driver/process_entry.py`), whose stages are those of `remote_stages`. They send it through
the mailbox in the run folder (`storage/coordination/job_mailbox.py`) to `mailbox_transport` in the
job, and from there to the driver's `server` and `stages`.
"""
