"""What each rank of a training runs, and what reads its checkpoints: no Ray, no MLflow.

training         each worker runs it: joins the group, and trains as one of its ranks
loop             the training loop: load, while not done, step, validate, save
loaded_workload  a workload that is loaded, its splits, and the first weights
learner          the model, its optimizer and schedule, and how the ranks share the work
passes           the forward and backward passes of a step
agreement        the losses and requests that all ranks received in a step's messages
validation       validation in the loop: every rank measures its shards, all merge alike
step_metrics     records of steps and validations, in the journal and live.json; the clock

model_checks     refuses models, optimizers and schedules that cannot be trained exactly
followed         what may change of a model while it is trained, and what may not
memory           what a process remembers from one attempt at a run to the next

metrics/         the metrics of trainings and validations, and their figures
data/            batches of a workload's datasets, and new data to score
checkpoint/      checkpoints of a training: taken, written, read and continued
distributed/     torch.distributed: how the ranks of an attempt find each other and talk
"""
