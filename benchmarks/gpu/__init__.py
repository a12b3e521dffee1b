"""What checkpoints cost, and how fast a small model trains, on one GPU: `make bench-gpu`."""
