"""What README and the pages of docs promise a user, each in a sentence, in the pages' order.

`@pytest.mark.promise("key")` in a test says that it holds the promise; see tests/promises.py.
"""

from __future__ import annotations

PROMISES: dict[str, dict[str, str]] = {
    "README.md": {
        "demo-goes-on": "A demo that was killed goes on when it is started again, and one that has "
        "finished is followed by a new one.",
        "exact-training": "A training that is killed with SIGKILL and started again, on any number "
        "of workers, ends with the same weights and the same metrics of every step as one that "
        "nobody touched.",
        "exact-pipeline": "A pipeline whose process is killed, and which is started again, ends "
        "with the same evaluations, predictions and MLflow runs as one that nobody touched, and "
        "leaves nothing behind.",
        "cheap-checkpoints": "A checkpoint costs the training loop one copy in memory; hashing "
        "and storing go on in the background, shared by the workers.",
        "plain-files": "Results are files that other programs open: safetensors, JSON and Parquet.",
        "no-pickle": "Nothing that is stored is ever read by pickle.",
        "one-line-refusal": "What cannot be done is refused in one line that says what and which "
        "value, and leaves no run behind.",
        "whole-pipeline": "One command trains, evaluates, selects the best checkpoint, infers and "
        "publishes; the last line that it prints is the address of the report.",
        "gpus": "A new run trains on GPUs where every worker can have one, else on CPUs.",
        "secrets": "Logins in URLs, passwords in addresses and the variables of a `runtime_env` "
        "are never recorded, and no message shows a password: secrets come from the environment.",
    },
    "docs/checkpoints.md": {
        "all-state": "A checkpoint holds all that the next step depends on.",
        "commit-last": "A checkpoint counts only when every byte of it is stored: its manifest is "
        "created last, and once.",
        "readable": "The lines of this page read all of a checkpoint without evertrain, also one "
        "with frozen weights or of strategy `fsdp`; an index says which file has which tensor.",
        "frozen-weights": "Frozen weights are sent once, and each checkpoint is complete by "
        "itself.",
        "backpressure": "One checkpoint is under way at most: one that comes too early is left "
        "out or waits, as `checkpoint_backpressure` says; the last one and one after a validation "
        "are never left out.",
        "killed-save": "A save that is killed at any moment leaves the old checkpoint or the new "
        "one, and what it left is deleted by the next attempt.",
        "storage-outage": "While the storage fails the training goes on, with a warning, and "
        "checkpoints are saved again when it works.",
        "unsaved-limit": "When nothing could be stored for `max_unsaved_s`, the training ends with "
        "an error that names the last good checkpoint, and goes on from there later.",
        "unscheduled": "A checkpoint that was not scheduled is deleted when the next is committed, "
        "and takes the place of no other.",
        "small-manifest": "The journal is a few segments after any number of checkpoints, so that "
        "a manifest stays small.",
        "verified": "Every stored byte of a checkpoint and its journal is verified: when it is "
        "read, and by `evertrain verify`, which names what is damaged.",
        "damaged-checkpoint": "A checkpoint that fails to verify is quarantined, and all workers "
        "go on from the newest good one; if none is good, the error lists what is wrong with each.",
        "goes-on-without-journal": "A journal segment that is damaged does not keep a run from "
        "going on.",
        "damaged-journal": "What is shown of a run leaves out the metrics of a damaged journal "
        "segment, with a warning.",
        "newer-format": "A manifest of a newer format is refused with an error that says so, and "
        "is not taken for damage.",
    },
    "docs/cli.md": {
        "parameters": "`--help` lists every parameter; a YAML or JSON file holds them by their "
        "names, and flags override it, of `settings` single entries.",
        "run-names": "A run without a name is called by its workload and the time in UTC.",
        "runs-list": "`runs list` shows each run's metrics, data and state, and one that cannot "
        "be read with what is wrong with it; `runs status` tells where a running one is; `--json` "
        "prints JSON.",
        "runs-delete": "`runs delete` takes MLflow's side of the run along.",
        "extend-and-fork": "A run that is extended ends as one that was asked for more epochs at "
        "once, and a fork ends as its origin, also if they are killed on the way.",
        "diff": "`diff` compares runs or checkpoints to the bit and ends with 1 if anything that "
        "counts differs; what may change in a run, and surroundings, are shown and do not count.",
        "export": "`export` writes the verified weights of a checkpoint, or of a run's best, as "
        "one safetensors file.",
        "verify-resume": "`verify-resume` kills and resumes a training of your workload and says "
        "`identical`, or names the first metric and the first tensor that differ.",
        "verify-code": "`verify` reads every stored byte, and ends with code 2 if one is bad.",
        "dry-run": "`--dry-run` takes one step through every stage.",
        "runs-stop": "`runs stop` has whoever drives the run save and end, wherever that is, and "
        "is refused if nobody does.",
        "grace": "A training that is told to end has `grace_s` to finish its step and store a "
        "checkpoint.",
        "best-checkpoint": "The best checkpoint is the one whose monitored metric is best; of "
        "equal ones the later, and one that is not a number comes last.",
        "retention": "A checkpoint stays if a rule keeps it and goes otherwise; of an interrupted "
        "run the same ones stay as of an undisturbed one.",
        "prune": "`prune` deletes what `--dry-run` tells, which writes nothing itself, and is "
        "refused while somebody drives the run.",
        "release-models": "`prune --release-models` lets go of the checkpoints whose models have "
        "no registered version; if MLflow cannot be asked, nothing is deleted.",
        "finalists": "No storage that is slow, or away for less than ten minutes, takes one of the "
        "finalists away.",
        "skip-unchanged": "With `--skip-unchanged` no run begins if nothing that counts has "
        "changed since the last finished one, and why it does train is in the log.",
        "environment": "`EVERTRAIN_STORAGE` names the folder of the runs, `MLFLOW_TRACKING_URI` "
        "MLflow, and `PREFECT_API_URL` a Prefect server instead of a temporary one.",
        "resume-as-asked": "A run that exists goes on as it was asked last, but for what is said "
        "anew.",
        "no-silent-change": "What may not change in a run is refused, with the difference.",
        "init-from": "`init_from` begins a new run with the weights of a run, a checkpoint, a file "
        "or a registered model; what does not fit is refused in a line that lists it all.",
        "init-from-exact": "A run that is killed before its first checkpoint begins again with the "
        "very same weights; if they are gone or altered by then, it is refused.",
        "stop": "Ctrl-C has a training store a last checkpoint and the command end with 130; "
        "`runs resume` goes on from there to the same end.",
        "stop-everywhere": "All workers of a training that is stopped save after the same step; a "
        "validation that runs is broken off, and starts over when the run goes on.",
    },
    "docs/cluster.md": {
        "job-outlives-caller": "The job on a cluster trains on without who asked for it, and "
        "whoever asks for the run again attaches to it.",
        "last-caller": "The last of several callers ends the job, and one that nobody calls any "
        "more ends by itself; nobody counts as gone because the storage is away.",
        "cluster-other-wish": "Who wants something else of a run that a job trains is refused, "
        "with the job.",
        "cluster-code": "A workload's module and environment variables reach the workers by Ray's "
        "`runtime_env`.",
        "cluster-addresses": "A database file of the asking machine is refused where the runs are "
        "on object storage, and so is a login in MLflow's address.",
        "loopback": "With a local Ray, what evertrain opens is on the loopback only.",
        "elastic": "`--num-workers MIN,MAX` trains with as many workers as there is room for, with "
        "the same bits, and waits where there is less room than for the fewest.",
    },
    "docs/mlflow.md": {
        "mlflow-checked": "Before any compute MLflow is asked once: a refusal refuses the run, "
        "with a line that says why; a server that is down does not.",
        "mlflow-view": "MLflow has one parent run with what was asked and the datasets, and a "
        "nested run for each stage with its figures and files; the artifacts lie beside the "
        "SQLite database.",
        "mlflow-same-runs": "A run that is continued goes on in the same MLflow runs; another one "
        "at the same address gets new ones.",
        "mlflow-once": "Every committed metric is in MLflow once, at the journal's step and time, "
        "also after a restart and where steps are trained again; one that was not finite is shown "
        "as NaN.",
        "mlflow-outage": "An outage of MLflow is one warning, what was missed is sent when the "
        "server answers, and one that stays down delays the end by seconds only.",
        "mirror": "`mirror` sends MLflow what it lacks of a run and of its batch inferences, and "
        "nothing twice.",
        "model": "The best checkpoint becomes a model, once, which takes raw columns, also as "
        "JSON, and predicts what the checkpoint predicts.",
        "model-code": "The model brings the user's module along, and loads without pickle.",
        "model-pinned": "The checkpoint of a model is pinned before the model is there, and stays.",
    },
    "docs/operations.md": {
        "worker-dies": "When a worker dies no other one waits for it, and the next attempt goes on "
        "from the newest checkpoint to the same end; one that evaluates or infers is replaced.",
        "three-restarts": "When three restarts in a row brought no new checkpoint, the run fails, "
        "with the last cause; a new checkpoint makes the count begin anew.",
        "ray-dies": "A driver whose own Ray dies says so and ends, so that the next try has a new "
        "one.",
        "driver-dies": "A driver process that dies is replaced for the next try.",
        "worker-hangs": "A worker that hangs in a step or a validation is ended after "
        "`hang_timeout_s`, with its stacks in the log, and the run goes on to the same end.",
        "worker-frozen": "A worker that is frozen as a whole is noticed by the others after "
        "`hang_timeout_s`; one that is only slow is not ended.",
        "not-a-number": "A loss or a weight that is not a number ends the training, with the step "
        "and the last good checkpoint, and is never committed.",
        "users-bug": "A bug in the workload fails the run with the traceback of the first rank "
        "that failed, and no rank waits for it.",
        "input-refused": "Data to score that lack a column, have another shape or are no file of "
        "their kind are refused with the file, before anything is computed.",
        "input-replaced": "A file to score that is replaced or deleted meanwhile is an error; what "
        "arrives meanwhile is left for the next time.",
        "cluster-capacity": "More workers than the cluster can place are refused before the run is "
        "created; for a run that exists the cluster is waited for.",
        "prefect-away": "When Prefect's server is lost, one line says so, the pipeline goes on, "
        "and what was to be shown is shown when it is back.",
        "prefect-stays-away": "Where Prefect's server stays away, the command ends soon after the "
        "report, with the exit code that it would have.",
        "prefect-put-right": "A flow run that still says Running, though nobody drives its run, "
        "gets its true state by the next command of that storage.",
        "one-driver": "Of two drivers that want one run the second is refused within seconds and "
        "told who drives it; one that died is followed at once, or after ten seconds if it was on "
        "another machine.",
        "who-tries-again": "Failures of the infrastructure are tried again, and what you have to "
        "mend is not.",
        "crash-loop": "A flow run that died five times in a row without a new checkpoint is given "
        "up.",
    },
    "docs/prefect.md": {
        "page-commands": "The commands on the pages about Prefect are ones that Prefect and "
        "evertrain have.",
        "temporary-server": "A command's temporary Prefect server ends with the command, also if "
        "that is killed, and keeps its database.",
        "schedule": "A schedule makes runs due when it says so, and stays as it was switched when "
        "the deployment is deployed again.",
        "scored-folder": "Of a folder all files below it are scored; what begins with `.` or `_` "
        "is left out.",
        "batch-latest": "`run: latest` is the newest created run with a report that is no dry run; "
        "without one it is said what there is.",
        "batch-shown": "A batch inference's flow run, log and artifact, and MLflow, say which "
        "checkpoint scored what, and where the predictions are.",
        "batch-beside-training": "Batch inference needs no lease: the checkpoint is pinned while "
        "it is read; the predictions of a split by a checkpoint are made once.",
        "flow-run-names": "A flow run that is run again has the same name and continues its run; "
        "another flow run that gets the same name fails and says so.",
        "report-page": "The report's page shows the metrics of both splits beside those of the run "
        "before, with the differences, and the data of each split.",
        "json-results": "A flow's result is stored as JSON, and tasks store none.",
    },
    "docs/run-folder.md": {
        "earlier-versions": "What an earlier version of evertrain has stored is read, continued "
        "and served by a newer one.",
        "record": "`run.json` records the settings with their defaults, the code, and every file "
        "of the sources with size and digest.",
        "fencing": "An attempt that was replaced can neither commit nor delete, and what it "
        "commits too late does not count.",
        "predictions-input": "The manifest of predictions says what was scored, with the digest of "
        "each file.",
        "killed-delete": "A delete that is killed leaves the checkpoint whole or not there, and "
        "the next attempt ends it.",
        "pinned-is-kept": "What is pinned is not deleted, be it by a reader that lives or by any "
        "file of yours in `pins/`; if pins cannot be listed, nothing is deleted.",
        "leftovers": "What attempts that are over left without a commit is deleted by the next "
        "one; quarantined checkpoints and manifests that came too late stay, with their journal "
        "segments.",
        "surroundings": "A resume under other library versions warns, or is refused with "
        "`--strict`.",
        "retries": "What passes by itself is tried again with growing pauses, and everything else "
        "is an error at once; when the time is spent, the error names the cause and the time.",
        "created-once": "An object that must be created once has one winner, and who asks again "
        "for its own has won.",
        "untrusted-files": "Nothing is read, written or deleted through a symbolic link or a name "
        "that leads out of the run folder; a manifest, a lease or a report that is too large is "
        "not read.",
    },
    "docs/workloads.md": {
        "page-code": "Every piece of Python on this page is in the two example files, which the "
        "tests train and load.",
        "settings": "A setting that is out of range or unknown is refused before any compute, by "
        "its name, and `evertrain workloads` shows a workload's settings.",
        "mapped-data": "Data that are mapped into memory give the same bits as data in memory.",
        "streams": "A run on a stream that was killed goes on with the next sample.",
        "sources": "What arrives in the sources' folders after a run began is left out by all its "
        "processes until the next run.",
        "changed-data": "Data that are not what was recorded end the run, with a line that says "
        "what was recorded and what is there.",
        "same-prepare": "Evaluation, batch inference and the served model are fed as the training "
        "was.",
        "sample-randomness": "What a sample draws depends on the seed, the epoch and the sample, "
        "not on its batch or its worker.",
        "schedule-span": "A schedule spans the steps that the run began with; a run that is "
        "extended goes on at the rate of the last of them.",
        "own-state": "A moving average in the model is validated and kept with it, and a "
        "workload's own state is restored when a run is continued.",
        "fsdp": "`fsdp` computes what `ddp` computes, but for rounding, while each worker keeps a "
        "slice only, and equal numbers of workers give equal bits.",
        "fsdp-limits": "What `fsdp` cannot do is refused, and another number of workers warns, or "
        "is refused with `strict`.",
        "mnist-files": "MNIST's files may be plain or packed; one that is missing, truncated, "
        "altered or of another format is refused with what was found.",
        "published-weights": "torchvision's weights of ResNet-18 load by the rules of this page, "
        "and every other difference is an error that lists them all.",
    },
}

HELD_BY_ALL_TESTS: dict[str, dict[str, str]] = {
    "README.md": {
        "any-storage": "Checkpoints and results live on any fsspec storage.",
        "fit": "`fit()` trains from Python, without Prefect.",
    },
    "docs/cli.md": {
        "second-signal": "A second Ctrl-C ends everything at once.",
        "ui": "`ui` opens Prefect's and MLflow's pages; Ctrl-C ends both.",
    },
    "docs/cluster.md": {
        "drained-nodes": "A node that is drained is left at once, and nothing is computed twice.",
        "lost-nodes": "A node or a head that vanishes, or is cut off, costs what was not saved.",
        "job-dies": "A job that dies is followed by a new one.",
        "dashboard-away": "Ray's dashboard may be away while a job trains.",
    },
    "docs/operations.md": {
        "memory": "Who takes too much memory is told, and not tried again.",
        "scorer-hangs": "A worker that evaluates or infers and hangs is ended, and replaced.",
        "batch-without-mlflow": "Predictions are made though MLflow is away.",
    },
    "docs/prefect.md": {
        "cancel": "A flow that is cancelled has its training save, and goes on from there later.",
        "one-at-a-time": "One run of `retrain` trains at a time; the next one waits.",
        "automation": "A flow whose process died is run again by the automation.",
        "night-without-news": "A night without new data ends as Completed and begins no run.",
    },
}
"""Promises whose tests take too long for `make test`, or need an S3 server or networks."""
