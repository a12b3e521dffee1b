"""The champion: what a gate decides, who was champion when, and whether a training is worth it."""
