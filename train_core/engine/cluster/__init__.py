"""Everything that imports Ray: the pool of workers, its placement, its failures."""
