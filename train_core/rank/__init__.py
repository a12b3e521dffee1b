"""Training: what each rank runs."""
