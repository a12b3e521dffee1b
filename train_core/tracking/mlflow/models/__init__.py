"""Checkpoints as models in MLflow.

kept        the kept checkpoints of a run as LoggedModels, each with its metrics
files       the files with which a checkpoint's model loads and serves
code        the code that a model needs: paths to copy, packages to install
logged      a model that anyone can load or serve, with a copy of a checkpoint's files
registered  the registered model: its versions and aliases
pages       what MLflow's pages say of champions
lookups     which checkpoint a model is of, and which models are registered
"""
