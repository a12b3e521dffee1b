"""The driver as a job of a cluster: its callers' calls come by its mailbox in the run folder.

`train_core/client/carriers` is the callers' side, and docs/design/attach.md has the way of a call.
"""
