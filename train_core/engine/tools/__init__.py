"""Comparing runs, a training without Ray, isolated calls."""
