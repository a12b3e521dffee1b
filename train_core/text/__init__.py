"""Text that people read: in a terminal, in a log, on a page.

shown_text  text as people are shown it: without secrets and control characters, cut
log_lines   the log of drivers and workers: plain lines, a mark before each warning
"""
