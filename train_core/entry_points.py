"""What is started by name: a dependency that no import shows.

Programs are started as `python -m NAME`; a worker of the pool is told `module:function`.
"""

from __future__ import annotations

DRIVER = "train_core.engine.driver.server"
"""The driver process, which runs the stages of one run: started by `client.driver`."""
JOB = "train_core.engine.driver.job_entry"
"""The driver as a job of a Ray cluster: submitted by `engine.driver.remote_stages`."""
ISOLATED_CALLS = "train_core.engine.tools.isolated_calls"
"""One call that needs torch or MLflow: started by `client.isolated`."""
STANDALONE_RANK = "train_core.engine.tools.standalone"
"""One rank without Ray, under torchrun: started by `client.verify_resume`."""
PROGRAMS = (DRIVER, JOB, ISOLATED_CALLS, STANDALONE_RANK)

TRAIN = "train_core.engine.training.rank:train"
"""One rank of a training."""
MEASURE_SHARD = "train_core.engine.scoring.evaluate:measure_one_shard"
"""One shard of an evaluation."""
SCORE_PART = "train_core.engine.scoring.predict:score_one_part"
"""One part of a batch inference."""
FUNCTIONS = (TRAIN, MEASURE_SHARD, SCORE_PART)
