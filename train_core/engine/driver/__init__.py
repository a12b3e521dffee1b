"""The driver's room: what happens before the stages of a run, and around them."""
