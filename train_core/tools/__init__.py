"""Comparing runs, a training without Ray, exports, isolated calls."""
