"""The checkpoints of a training.

* `save_schedule`: when a checkpoint is taken
* `save_state`: what became of the last one
* `layout`: which tensor is in which file, and which rank writes it
* `selection`: which checkpoint is best
* `retention`: which checkpoints stay, and why
"""
