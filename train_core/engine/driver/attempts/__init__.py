"""The attempts at a training: the supervisor, and how it has one run and stopped."""
