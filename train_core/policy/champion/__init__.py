"""The champion of a registered model: the version that serves.

* `gate_options`: what a new version has to show
* `gate_decision`: whether a new version becomes champion, from the evidence
* `next_step`: what follows for a version, from the decisions on it and what people answered
* `rollback`: which version a rollback goes back to
* `model_names`: names of models and addresses of their versions
* `changes`: whether another training would give anything new
"""
