"""Training functions that were written for Ray Train: they run on Ray Train itself.

The one room that imports Ray Train. No module imports this one: `entry_points` names what of it is
used, and the driver and `Checkpoint.to_ray` import that when they need it.

runner             what the driver uses: how a function is checked and trained
checks             the checks of a request before the function runs
launcher           the attempts of the supervisor: each is one `fit` of Ray Train
task               what the workers of an attempt are sent, and what they report
trainer            a function, or a factory's trainer, made ready for one attempt
trainer_settings   what a factory's trainer says of workers and checkpoints
ray_private_hooks  the one file with private names of Ray: what a function calls in its worker
reports            each rank's reports, and the checkpoint of the run folder that they become
validations        what validation functions measure, in the driver
init_folder        the folder of another run that a function begins with
ray_checkpoints    a folder of a run as Ray Train's checkpoint, and back
"""
