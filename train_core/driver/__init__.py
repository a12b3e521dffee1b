"""The driver: a server of stages, in a process or in a job of a cluster.

process_entry   the driver as a process of its own: the entry point
pipe_transport  calls and answers as lines, by the pipes of that process
job/            the driver as a job of a cluster, whose calls come by a mailbox
server          carries out the calls that a transport brings, and answers each

run_stages      the stages of a run, as the driver carries them out
preparing/      before a training: the request is checked, the run is created and taken
held_run        the run that a driver has: its lease, the heartbeats, its supervisor
ray_session     the Ray of one request and the pool of workers on it, here or on a cluster
runner          how the driver trains a workload, and how a training function
attempts/       the attempts at a training: supervisor, launcher, deletion of orphans
report_feed     the reports of a training, in their order, while it goes on
gate_stages     the stages `gate` and `promote`: register, decide, move the champion
publication     the end of a pipeline: curves, report.json, and what MLflow lacks
scoring_stages  the stages of a batch inference, which takes no lease
timeline        seconds from the start of a pipeline's process until its milestones
"""
