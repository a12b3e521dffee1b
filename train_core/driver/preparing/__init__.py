"""Before a training: the request is checked, the run is created and taken."""
