"""What may be deleted, and the deleting.

retention_after_commit  retention while a run is driven: after each commit, and at its end
retention_of_run        which checkpoints the rules, the report and pins keep
delete_checkpoint       the deletion of one checkpoint: notice, manifest, files, pins
orphans                 what ended attempts left behind, and what belongs to no commit
dead_scorers            what jobs left that only scored and died
prune                   `evertrain prune`: all that nothing keeps, and why the rest stays
"""
