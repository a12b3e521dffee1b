"""The champion of a registered model: the version that serves.

* `gate_decision`: whether a new version becomes champion, from the evidence
* `rollback`: which version a rollback goes back to
* `model_names`: names of models and addresses of their versions
* `changes`: whether another training would give anything new
"""
