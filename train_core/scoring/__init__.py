"""Scoring with checkpoints: evaluation, batch inference, and the evidence of a gate.

evaluate       checkpoints measured on a split, shard by shard, by the workers of a pool
predict        batch inference: rows scored by a checkpoint, stored as Parquet
gate_evidence  the evidence of a gate: challenger and champion on the same rows and pool
gate_metric    the metric by which a gate decides
gate_rows      measures one model in a worker: each row's part of the metric, the costs
comparison     two models on the same rows: improvement, confidence interval, recalls
row_sums       what each row adds to a sum, kept as its difference from most rows
"""
