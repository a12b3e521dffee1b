"""Registered models in the storage: versions, decisions, answers and champions, in one log each.

* `log`: reads and records events
* `records`: what an event records
* `history`: what the events come to
* `earlier`: reads the documents of models that had no log yet
* `of_run`: what became of one run's versions
"""
