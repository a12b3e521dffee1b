"""Ray, and all that imports it: the pool of workers, its placement, its failures."""
