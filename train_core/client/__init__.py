"""For programs without torch: each call runs in a process of its own."""
