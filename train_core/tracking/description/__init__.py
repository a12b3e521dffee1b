"""What a tracker is told of a run: its description, its parameters and its datasets.

note        the description: what the gate decided, what was trained, how it ended
parameters  the facts of run.json as parameters; those that were set, once more apart
datasets    the data of a run, as a tracker shows them
"""
