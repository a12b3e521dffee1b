"""The champion of a registered model: the version that serves.

* `gate`: whether a new version becomes champion, from the evidence
* `champions`: who was champion when, from the log
* `model_names`: names of models and addresses of their versions
* `changes`: whether another training would give anything new
"""
