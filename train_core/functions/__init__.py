"""Training functions that were written for Ray Train: they run on Ray Train itself.

ray_private_hooks     the one file with private names of Ray: what a function calls in its worker
trainer               a function, or a factory's trainer, made ready for one attempt
trainer_settings      what a factory's trainer says of workers and checkpoints
init_folder           the folder of another run that a function begins with
attempt, task         one attempt, and what its workers are sent
reports               each rank's reports, and the checkpoint of the run folder that they become
validation_functions  what validation functions measure, in the driver
"""
