"""The champion of a registered model: the version that serves.

* `gate_options`: what a new version has to show
* `gate_decision`: whether a new version becomes champion, from the evidence
* `model_state`: who serves, what follows for a version and where a rollback leads
* `model_names`: names of models and addresses of their versions
* `changes`: whether another training would give anything new
"""
