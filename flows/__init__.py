"""What happens, in which order: Prefect flows, and the command line in front of them."""
