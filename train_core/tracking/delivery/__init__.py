"""The delivery to a tracker: beside a training, and afterwards what the tracker has missed.

`tracking/__init__.py` lists the whole way of a metric.

mirror           the mirror: shows in a tracker what the run folder has committed, once
delivery_thread  a thread that calls a sender, and calls it again after a failure
run_sender       the mirror's sender: what was committed, and the load of the machine
catch_up         sends what the tracker lacks of a run that no process drives
"""
