"""What evertrain is measured against: stock Ray Train, DDP under torchrun, by their own guides."""
