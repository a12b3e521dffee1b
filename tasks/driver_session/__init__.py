"""The session of a flow run: its driver, the thread of its stages, and its log."""
