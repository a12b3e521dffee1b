"""The driver: a server of stages, in a process or in a job of a cluster."""
