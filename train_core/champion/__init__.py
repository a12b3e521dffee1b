"""Registered models in the storage: versions, decisions, answers and champions, in one log each.

* `log`: reads and records events
* `history`: what they come to
* `earlier`: the documents of before there was a log
* `of_run`: what became of one run's versions
"""
