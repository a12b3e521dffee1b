"""Registered models in the storage: versions, champions, and the gate's decisions."""
