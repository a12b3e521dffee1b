"""What checkpoints cost beside their peers and their limits: `make bench-checkpoint`."""
