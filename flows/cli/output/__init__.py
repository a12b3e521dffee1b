"""What the command line prints: progress, tables, summaries, all of it through `terminal`."""
