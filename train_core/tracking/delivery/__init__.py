"""The delivery to MLflow: beside a training, and afterwards what MLflow has missed.

`tracking/__init__.py` lists the whole way of a metric.
"""
