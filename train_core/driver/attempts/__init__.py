"""The attempts at a training: the supervisor, the launcher of one, and requests to stop it."""
