"""The metrics of trainings and validations, and their figures.

forward          outputs, loss and predictions of a batch, in the configured precision
evaluation_loop  the metrics of a split: each sample once, merged in the order of shards
scores           the data of `score_figures`: confidence, targets, the worst samples
figures          figures of a run: curves over the steps, and confusion matrices
score_figures    figures of a split's predictions, drawn from their scores
gate_figures     the figure of a gate: the challenger beside the champion
"""
