"""Who may do what with a run: lease, pins, requests to stop, the mailbox of a job."""
