"""The run folder on any storage.

An import goes down this list only:

    cleanup/               deletes what nothing keeps: by the rules, after a death, `prune`
    fork                   begins a run with a checkpoint of another one
    run_writer             creates, commits and deletes, in the name of an attempt
    verification/          whether a checkpoint and a whole run are what was committed
    runs_of_storage        the runs of a storage, and whether one is over
    addresses              what people call a run or a checkpoint
    predictions            what batch inferences committed
    evaluations            what measured checkpoints
    run_checks             what is checked before a folder is used
    run_reports            what report.json says
    run_folder             reads a run; its docstring has the layout
    committed              finds what was committed, by a listing, and opens it
    coordination/          who may do what: lease, heartbeat, pins, requests to stop, mailbox
    records/               what lies in a run folder: names, manifest, journal, run.json, …
    objects/               a folder on any storage: Store, retries, reads, and its backends/
"""
