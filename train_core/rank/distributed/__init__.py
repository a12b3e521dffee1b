"""torch.distributed: how the ranks of an attempt find each other and talk."""
