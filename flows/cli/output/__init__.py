"""What the command line prints: progress, tables, summaries, all of it through `terminal`.

progress         where a pipeline is: its stage, and the position of the training
summary          the outcome of a pipeline
listings         how list-like commands print: a table for people, JSON for programs
run_views        a table of all runs, and the state of one
difference_rows  differences of tensors and values as rows of a table
terminal         all output to the terminal: control characters escaped, secrets masked
"""
