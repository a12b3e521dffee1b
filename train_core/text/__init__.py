"""Text that people read: in a terminal, in a log, on a page."""
