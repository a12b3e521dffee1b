"""Comparison and export of runs, a training without Ray, calls in a process of their own."""
