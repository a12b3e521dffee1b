"""What the project's workload imports of its own."""

BRIGHTNESS = 16
