"""What README and the pages of docs promise a user, each in a sentence, in the pages' order.

`@pytest.mark.promise("key")` in a test says that it holds the promise; see tests/promises/.
"""

from __future__ import annotations

PROMISES: dict[str, dict[str, str]] = {
    "README.md": {
        "demo-goes-on": "A demo that was killed goes on when it is started again; after one that "
        "has finished, a new one begins.",
        "exact-training": "A training that is killed with SIGKILL and started again, on any number "
        "of workers, ends with the same weights and the same metrics of every step as an "
        "undisturbed one.",
        "exact-pipeline": "A pipeline whose process is killed, and which is started again, ends "
        "with the same evaluations, predictions and MLflow runs as an undisturbed one, and leaves "
        "nothing behind.",
        "cheap-checkpoints": "A checkpoint costs the training loop one copy in memory; hashing "
        "and storing go on in the background, shared by the workers.",
        "plain-files": "Results are files that other programs open: safetensors, JSON and Parquet.",
        "no-pickle": "Nothing that evertrain stores is ever read by pickle.",
        "one-line-refusal": "A request that cannot be met is refused in one line that says what is "
        "wrong and with which value, and leaves no run behind.",
        "own-names": "A project may have files of any name, as `tasks.py`, `flows/` and "
        "`secrets.py`: evertrain, Ray and Prefect never import them in place of their own.",
        "whole-pipeline": "One command trains, evaluates, selects the best checkpoint, infers and "
        "publishes; the last line that it prints is the address of the report.",
        "own-training-function": "A training function that was written for Ray Train runs "
        "unmodified; what it reports becomes the run's checkpoints and metrics, and it resumes "
        "from the newest checkpoint after an error or a kill.",
        "own-predictor": "With a predictor, what a training function reports is evaluated on a "
        "workload's splits, and the best checkpoint scores new data; a file that holds a pickle "
        "is read only where the run trusts it.",
        "gpus": "A new run trains on GPUs where every worker can have one, else on CPUs.",
        "secrets": "Logins in URLs, passwords in addresses and the variables of a `runtime_env` "
        "are never recorded, and no message shows a password: secrets come from the environment.",
    },
    "docs/bring-your-own.md": {
        "functions-page-code": "The Python and YAML on that page and on training-functions.md are "
        "those of files, which are run.",
    },
    "docs/champion.md": {
        "gate-rules": "A version becomes champion by the rules of this page alone, and a person is "
        "asked only about what could become champion, or cannot be compared.",
        "gate-evidence": "What was decided, why, and all that was measured of both models are in "
        "the model's log, the report, the terminal, Prefect and MLflow.",
        "gate-rows": "Both models score the same rows with the bits of an evaluation, and the "
        "metric of any choice of rows is that metric, and no mean of rows; one that does not add "
        "up by rows is refused.",
        "gate-interval": "The interval is that of a paired bootstrap, the same for the same seed, "
        "and nothing for two equal models.",
        "first-champion": "The first version that is good enough is champion without a comparison.",
        "gate-killed": "A gate that is killed at any moment is completed by the next attempt: one "
        "version, one decision for each champion that it is compared with, one champion.",
        "one-champion": "Of pipelines that finish at once one after the other becomes champion, "
        "each by a decision that compares it with the one before.",
        "altered-decisions": "A decision, an answer, a version or a champion's entry that was "
        "altered, renamed or written by a newer evertrain is refused by name.",
        "approval": "A version that waits for a person becomes champion when it is approved, and "
        "stays what it is when it is rejected; the answer counts for that comparison alone.",
        "no-is-final": "A version that a person has rejected never becomes champion by a gate, "
        "whoever is champion later and whoever goes on with its run; of two answers the first "
        "counts, and the other person is told whose that is.",
        "rollback": "`rollback` makes the champion before this one champion again, or any version "
        "that the gate has decided on and whose checkpoint is there.",
        "champions-command": "`champions` tells which version was champion when, by which run and "
        "why, and with `--versions` what became of each version.",
        "champion-stays": "The run of a champion is not deleted, and no rule deletes the "
        "checkpoint of a version.",
        "address-of-a-model": "Batch inference takes `models:/NAME@champion` or a version, and "
        "records the version in the manifest of the predictions.",
        "mlflow-registered": "MLflow has each version with its decision, and the aliases; an "
        "MLflow that was lost is written again with them.",
        "no-gate": "With `--no-gate` no model is registered.",
    },
    "docs/checkpoints.md": {
        "all-state": "A checkpoint holds everything that the next step depends on.",
        "commit-last": "A checkpoint counts only when every byte of it is stored: its manifest is "
        "created last, and once.",
        "readable": "The lines of this page read all of a checkpoint without evertrain, also one "
        "with frozen weights or of strategy `fsdp`; an index says which file has which tensor.",
        "frozen-weights": "Frozen weights are sent once, and each checkpoint is complete by "
        "itself.",
        "backpressure": "At most one checkpoint is in flight: one that is due too early is skipped "
        "or waits, as `checkpoint_backpressure` says; the last one and one after a validation are "
        "never skipped.",
        "killed-save": "A save that is killed at any moment leaves the old checkpoint or the new "
        "one, and the next attempt deletes the remains.",
        "storage-outage": "While the storage fails the training goes on, with a warning, and "
        "checkpoints are saved again when it works.",
        "unsaved-limit": "When nothing could be stored for `max_unsaved_s`, the training ends with "
        "an error that names the last good checkpoint, and goes on from there later.",
        "unscheduled": "An unscheduled checkpoint is deleted when the next is committed, and takes "
        "no other checkpoint's place in retention.",
        "small-manifest": "The journal is a few segments after any number of checkpoints, so that "
        "a manifest stays small.",
        "verified": "Every stored byte of a checkpoint and its journal is verified: when it is "
        "read, and by `evertrain verify`, which names what is damaged.",
        "verified-copies": "A fork verifies every file while it is copied, and leaves no run "
        "behind if one is not what was committed.",
        "one-bad-read": "What is read wrongly once is read again, past caches, before anything is "
        "quarantined; `evertrain verify` lifts the quarantine of a checkpoint that is good.",
        "damaged-checkpoint": "A checkpoint that fails to verify is quarantined, and all workers "
        "go on from the newest good one; if none is good, the error lists what is wrong with each.",
        "goes-on-without-journal": "A run goes on although a journal segment is damaged.",
        "damaged-journal": "Reports and MLflow leave out the metrics of a damaged journal segment, "
        "with a warning.",
        "newer-format": "A manifest of a newer format is refused with an error that says so, and "
        "is not taken for damage.",
    },
    "docs/cli.md": {
        "parameters": "`--help` lists every parameter; a YAML or JSON file holds them by their "
        "names; flags override the file, and `settings` entry by entry.",
        "run-names": "A run without a name is named after its workload and the time in UTC.",
        "runs-list": "`runs list` shows each run's metrics, data and state, and says what is wrong "
        "with a run that cannot be read; `runs status` shows the progress of a running one; "
        "`--json` prints JSON.",
        "faults-in-rows": "What cannot be read of a run or a checkpoint is told in its own row, "
        "and hides no other.",
        "runs-delete": "`runs delete` deletes the run in MLflow, too.",
        "extend-and-fork": "A run that is extended ends like a run that had the larger number of "
        "epochs from the beginning, and a fork ends like its origin, also if they are killed on "
        "the way.",
        "diff": "`diff` compares runs or checkpoints to the bit and ends with 1 if anything that "
        "counts differs; what may change in a run, and surroundings, are shown and do not count.",
        "export": "`export` writes the verified weights of a checkpoint, or of a run's best, as "
        "one safetensors file.",
        "verify-resume": "`verify-resume` trains your workload undisturbed, killed and resumed, "
        "with one rank killed, and in plain PyTorch, and says `identical`, `in place` and "
        "`plain`, or names the first of what a step reads and changes that differs, since which "
        "step, and its cause.",
        "verify-code": "`verify` reads every committed file of a run, has a line for each "
        "finding, and ends with code 1 if there is one.",
        "runs-stop": "`runs stop` makes the driver of the run save and end, on any machine, and is "
        "refused if no process drives it.",
        "grace": "A training that is asked to stop has `grace_s` to finish its step and store a "
        "checkpoint.",
        "best-checkpoint": "The best checkpoint is the one with the best monitored metric; among "
        "equal ones the later one, and a metric that is NaN ranks last.",
        "retention": "A checkpoint stays if a rule keeps it and is deleted otherwise; an "
        "interrupted run keeps the same ones as an undisturbed one.",
        "prune": "`prune` deletes what `--dry-run` lists; `--dry-run` writes nothing; `prune` is "
        "refused while another process drives the run.",
        "release-models": "`prune --release-models` removes the pins of checkpoints whose models "
        "have no registered version; if MLflow does not answer, nothing is deleted.",
        "finalists": "A storage that is slow, or away for less than ten minutes, does not change "
        "the finalists.",
        "yaml-numbers": "In a file of parameters `1e-3` is a number, also where Prefect reads it.",
        "skip-unchanged": "With `--skip-unchanged` no run begins if nothing that counts has "
        "changed since the last finished one; otherwise the log says what has changed.",
        "terminal": "Names, metrics and reasons are shown as text, whatever they hold: control "
        "characters as escapes, markup as it is, bounded in length; `--json` prints all, in ASCII.",
        "environment": "`EVERTRAIN_STORAGE` names the folder of the runs, `MLFLOW_TRACKING_URI` "
        "MLflow, and `PREFECT_API_URL` a Prefect server instead of a temporary one.",
        "resume-as-asked": "A run that exists goes on with the parameters that were given last, "
        "except those that are given anew.",
        "no-silent-change": "A change of a parameter that may not change in a run is refused, with "
        "the difference.",
        "init-from": "`init_from` begins a new run with the weights of a run, a checkpoint, a file "
        "or a registered model; tensors that do not fit are refused in a line that lists them all.",
        "init-from-exact": "A run that is killed before its first checkpoint begins again with the "
        "very same weights; if they are gone or altered by then, it is refused.",
        "stop": "On Ctrl-C a training stores a last checkpoint and the command ends with 130; "
        "`runs resume` goes on from there to the same end.",
        "stop-everywhere": "All workers of a training that is stopped save after the same step; a "
        "running validation is broken off, and starts over when the run goes on.",
    },
    "docs/cluster.md": {
        "last-caller": "The job ends when the last of several callers closes, and a job without "
        "callers ends by itself; a caller does not count as gone because the storage is away.",
        "cluster-addresses": "A database file on the caller's machine is refused if the runs are "
        "on object storage, and so is a login in MLflow's address.",
        "loopback": "With a local Ray, evertrain and its Ray listen on the loopback only, and so "
        "do the servers that a command starts.",
        "elastic": "`--num-workers MIN,MAX` trains with as many workers as there is room for, with "
        "the same bits, and waits where there is less room than for the fewest.",
    },
    "docs/mlflow.md": {
        "mlflow-checked": "Before any compute evertrain sends MLflow one request: if MLflow "
        "refuses it, the run is refused, with a line that says why; if the server is down, the run "
        "begins.",
        "mlflow-view": "MLflow has one run with the training, its parameters, those that were set "
        "apart, its datasets and a description of five lines, and nested runs for what is "
        "evaluated and scored; the artifacts lie beside the SQLite database.",
        "mlflow-compare": "Two retrainings are compared by ticking their rows: the curves are in "
        "their runs.",
        "mlflow-champion": "The page of a registered model says which version serves, since when "
        "and why, and a saved view of the table of runs has the decision on each retraining.",
        "mlflow-counters": "The counters of checkpoints grow from 0 over all attempts.",
        "mlflow-same-runs": "A run that is continued goes on in the same MLflow runs; another run "
        "at the same address gets new ones.",
        "mlflow-once": "Every committed metric is in MLflow once, at the journal's step and time, "
        "also after a restart and if steps are trained again; one that was not finite is shown as "
        "NaN.",
        "mlflow-outage": "An outage of MLflow is one warning; MLflow gets what it missed when the "
        "server answers; a server that stays down delays the end by seconds only.",
        "mirror": "`mirror` sends MLflow what it lacks of a run and of its batch inferences, and "
        "nothing twice.",
        "kept-models": "Each kept checkpoint is a LoggedModel with its metrics on the data that "
        "they are of; MLflow ranks them as the pipeline does; one whose checkpoint was deleted "
        "goes.",
        "mirror-weights": "`mirror_weights` says whose weights are copied into MLflow; what is "
        "copied is pinned.",
        "figures": "MLflow has figures of the training and of the predictions on the test split, "
        "which are readable on light and dark pages.",
        "model": "The best checkpoint becomes a model, once; the model takes raw columns, also as "
        "JSON, and predicts what the checkpoint predicts.",
        "model-code": "The model contains the user's module, and loads without pickle.",
        "function-model": "With a predictor, the best checkpoint of a training function becomes a "
        "model that predicts what batch inference predicts and has the predictor's code; it reads "
        "a pickle only where the run trusts it, and loads without any otherwise.",
        "model-pinned": "The checkpoint of a model is pinned before the model is made, and stays.",
    },
    "docs/operations.md": {
        "bad-file-named": "A file of the data that cannot be read, or is unlike the others, is "
        "named, with what is wrong with it, and the line of the workload that read it.",
        "worker-dies": "When a worker dies no other one waits for it, and the next attempt goes on "
        "to the same end: on CPUs, with a fixed number, the other workers train on after their "
        "last step, else new ones begin at the newest checkpoint; a worker that dies while it "
        "evaluates or infers is replaced.",
        "sigterm-of-a-worker": "A worker that gets SIGTERM, as of an evicted pod, is replaced: on "
        "CPUs, with a fixed number, the others train on after their last step; else, if all got "
        "it, or if they would lose a step, the training goes on from a checkpoint that it saves "
        "first.",
        "three-restarts": "After three restarts in a row without a new checkpoint, or a step that "
        "survivors keep beyond all before, the run fails, with the last cause; either resets the "
        "count.",
        "driver-dies": "A driver process that dies is replaced for the retry.",
        "worker-hangs": "A worker that hangs in a step or a validation is ended after "
        "`hang_timeout_s`, with its stacks in the log, and the run goes on to the same end.",
        "worker-frozen": "A frozen worker process is noticed after `hang_timeout_s`; a worker that "
        "is only slow is not ended.",
        "not-a-number": "A loss or a weight that is not a number ends the training, with the step "
        "and the last good checkpoint, and is never committed.",
        "users-bug": "A bug in the workload fails the run with the traceback of the first rank "
        "that failed, and no rank waits for it.",
        "input-refused": "Data to score that lack a column, have another shape or are not files of "
        "their kind are refused, with the file, before anything is computed.",
        "input-replaced": "A file to score that is replaced or deleted meanwhile is an error; a "
        "file that arrives meanwhile is left for the next time.",
        "cluster-capacity": "More workers than the cluster can place are refused before the run is "
        "created; for a run that exists evertrain waits for the cluster.",
        "prefect-away": "When Prefect's server is lost, one line says so and the pipeline goes on; "
        "artifacts are shown when the server is back.",
        "prefect-put-right": "A flow run that still says Running although no process drives its "
        "run gets its true state from the next retraining in that storage.",
        "loopback-direct": "A proxy of the environment is never asked for Prefect's, MLflow's or "
        "Ray's servers on this machine.",
        "one-driver": "Of two drivers that want one run the second is refused within seconds, and "
        "the error names the holder; a driver that died is replaced at once, or after ten seconds "
        "if it was on another machine.",
        "who-tries-again": "Failures of the infrastructure are retried; failures that you have to "
        "fix are not.",
        "crash-loop": "A flow run that died five times in a row without a new checkpoint fails and "
        "is not run again.",
        "hostile-folders": "Whatever is in a run folder, commands that look, copy or clean up end "
        "without a traceback, within seconds and a gigabyte of memory, and touch nothing outside "
        "of it.",
    },
    "docs/prefect.md": {
        "named-endings": "The name of a flow run's last state says how the night ended: promoted, "
        "refused, rejected, skipped, bad data, bad input or bad code; its type is as before.",
        "page-commands": "The commands on the pages about Prefect are ones that Prefect and "
        "evertrain have.",
        "temporary-server": "A command's temporary Prefect server ends with the command, also if "
        "that is killed, and keeps its database.",
        "scored-folder": "Of a folder all files below it are scored, except names that begin with "
        "`.` or `_`.",
        "batch-latest": "`run: latest` is the most recently created run that has a report and is "
        "not a dry run; without one the error lists the runs that there are.",
        "batch-shown": "A batch inference's flow run, log and artifact, and MLflow, show which "
        "checkpoint scored which data, and where the predictions are.",
        "batch-beside-training": "Batch inference needs no lease: a pin keeps the checkpoint while "
        "it is read; a checkpoint's predictions of a split are made once.",
        "flow-run-names": "A flow run that is run again has the same name and continues its run; "
        "another flow run that gets the same name fails with an error.",
        "report-page": "The report's page shows the metrics of both splits beside those of the "
        "previous run, with the differences, and the data of each split.",
        "report-text": "The artifacts in Prefect show names and reasons as text: no markup, HTML, "
        "link or image of others.",
        "json-results": "A flow's result is stored as JSON, and tasks store none.",
    },
    "docs/results-from-python.md": {
        "results-page": "The lines of this page run, from the first to the last.",
        "results-metrics": "The metrics are a row a step and a column a metric, to the bit, with "
        "NaN for what was not measured; a damaged part of the journal is left out with a warning.",
        "results-best": "The best checkpoint is the one with the best monitored metric, or with "
        "the best value of another metric, by the order that is given; the error of an unknown "
        "metric or step says which there are.",
        "results-files": "The files of a checkpoint are verified before they are read; no "
        "retention rule deletes them meanwhile; what is missing or altered is named.",
        "results-copies": "A copy is whole or not there, and is verified when it is opened again.",
        "results-ray": "A checkpoint becomes a `ray.train.Checkpoint` and back.",
    },
    "docs/run-folder.md": {
        "earlier-versions": "A newer version of evertrain reads, continues and serves what an "
        "earlier version has stored.",
        "record": "`run.json` records the settings with their defaults, the code, and every file "
        "of the sources with size and digest.",
        "fencing": "An attempt that was replaced can neither commit nor delete, and a commit that "
        "comes too late does not count.",
        "predictions-input": "The manifest of predictions says what was scored, with the digest of "
        "each file.",
        "killed-delete": "A deletion that is killed leaves the checkpoint whole or not there, and "
        "the next attempt completes it.",
        "pinned-is-kept": "A pinned checkpoint is not deleted, whether a living reader or a file "
        "of yours in `pins/` pins it; if pins cannot be listed, nothing is deleted.",
        "leftovers": "The next attempt deletes what ended attempts left without a commit; "
        "quarantined checkpoints and manifests that came too late stay, with their journal "
        "segments.",
        "surroundings": "A resume under other library versions warns, or is refused with "
        "`--strict`.",
        "retries": "Transient failures of the storage are retried with growing pauses, and other "
        "failures are errors at once; when the time is spent, the error names the cause and the "
        "time.",
        "created-once": "An object that must be created once has one winner, and a process that "
        "repeats its own request has won.",
        "untrusted-files": "Nothing is read, written or deleted through a symbolic link or a name "
        "that leads out of the run folder; a pipe or a device is no file; a document that is too "
        "large, has a key twice, or another type for a number is not read.",
    },
    "docs/search.md": {
        "on-report": "`fit` calls a function with each validation of a workload and each report of "
        "a training function, once and in order, also where a process dies; an error of that "
        "function ends the training, which is saved.",
        "search-page": "The search of that page is that of a file, which is run.",
        "tune-trials": "A trial of a search by Ray Tune is a run on Tune's own Ray, in the places "
        "that Tune has reserved; each validation or report reaches Tune, with a checkpoint that "
        "names the run's; a wrong parameter ends its trial alone.",
        "tune-stopped": "A trial that the scheduler ends is saved, and its run is shown as stopped "
        "by the scheduler.",
        "tune-shown": "MLflow has a run for the search, in which its trials are nested, and `runs "
        "list` has one line for it.",
        "tune-best": "One call has the best trial go on as a pipeline, with gate and inference.",
        "tune-pbt": "A trial that goes on with another one's weights begins with the bits of that "
        "run's verified checkpoint, and its optimizer's moments; run.json has both digests.",
    },
    "docs/training-functions.md": {
        "dry-run-function": "A dry run of a training function makes all checks, creates nothing "
        "and says what a run would do.",
        "without-ray-train": "Where Ray Train cannot be imported, workloads are trained and "
        "evaluated as ever, and a training function is refused in one line.",
        "room-for-ray-data": "A trainer with datasets is refused before anything is stored where "
        "its workers leave no node a CPU for Ray Data.",
        "trainers-word": "A parameter that a factory's trainer has another value for is refused.",
        "skip-unchanged-function": "With `skip_unchanged` a training function is not run again "
        "where it, its configuration, its predictor and the data of the workload are unchanged.",
    },
    "docs/pytorch.md": {
        "as-plain-torch": "Whatever PyTorch a workload is made of is trained on any number of "
        "shards as plain autograd over the same shards trains it, or refused by name.",
        "pytorch-page": "The table on that page is what the tests compare and see refused.",
    },
    "docs/inference.md": {
        "infer-command": "`evertrain infer` and `train_core.infer` score files, also without rows, "
        "with a checkpoint of a run, into the run folder and an empty folder.",
        "ids-kept": "Predictions have the input's ids, and the columns that are asked for as they "
        "are; a file without one is named.",
        "rows-apart": "A file to score changes no row of another one, whatever its columns, types "
        "and image sizes are.",
        "deep-images": "Grey images of 16 bits are read as they are, and colours of 16 bits are "
        "refused.",
        "large-row-groups": "A row group of predictions has 65,536 rows, or 128 MiB.",
        "plain-predictions": "pandas, pyarrow and DuckDB read the folder of predictions as it is; "
        "predictions of earlier versions are read.",
        "no-prediction-is-null": "A row for which the model gives NaN has no prediction, and is "
        "told.",
    },
    "docs/cookbook.md": {
        "cookbook": "Every recipe of this page is rehearsed without a refusal, learns, ends with "
        "the same bits after a resume, and predicts where it is served as where it was trained.",
    },
    "docs/workloads.md": {
        "any-column": "Texts, categories, dates, decimals, missing values and lists of any length "
        "are read from tables by one rule, in training and of new files; another kind of values "
        "than in training is refused.",
        "missing-is-no-number": "Where `prepare` makes an integer of a missing number or time, an "
        "error names the column and the row.",
        "fitted": "What a workload fits to its training split is recorded with its run, and is the "
        "same in each process, in a fork, and in a served model, which reads no file of its "
        "training.",
        "weighed": "A step of losses that are means over tokens is the same on any number of "
        "workers, and that of one batch of all of its tokens.",
        "epoch-order": "An epoch has the order that the workload gives it, derived from seed and "
        "epoch, also after a resume.",
        "several-optimizers": "Several optimizers train as in plain PyTorch, also after a resume; "
        "a ReduceLROnPlateau goes by the monitored metric.",
        "rehearsal": "A rehearsal names what would go wrong with a workload: wrong gradients, lost "
        "state and wrongly merged metrics are refused, all else is told; it is silent on what "
        "is shipped and on the layers of the table.",
        "page-code": "Every piece of Python on this page is in the two example files, which the "
        "tests train and load.",
        "no-driver-inside": "A script that starts a run at its top level, with its workload in "
        "it, is refused with its line, and leaves nothing running.",
        "data-workers-told": "A data process without room in shared memory, or that hangs, "
        "is an error with its line, the first within seconds.",
        "settings": "A setting that is out of range or unknown is refused by its name before any "
        "compute, and `evertrain workloads` shows a workload's settings.",
        "mapped-data": "Data that are mapped into memory give the same bits as data in memory.",
        "streams": "A run on a stream that was killed goes on with the next sample.",
        "sources": "Files that arrive in the sources' folders after a run began are left out by "
        "all its processes until the next run.",
        "changed-data": "Data that differ from the record end the run, with a line that says what "
        "was recorded and what is there.",
        "same-prepare": "Evaluation, batch inference and the served model prepare their data as "
        "the training does.",
        "sample-randomness": "A sample's random numbers depend on the seed, the epoch and the "
        "sample, not on its batch or its worker.",
        "schedule-span": "A schedule spans the steps that the run began with; a run that is "
        "extended goes on at the last rate of the schedule.",
        "own-state": "A moving average in the model is validated and kept with it, and a "
        "workload's own state is restored when a run is continued.",
        "fsdp": "`fsdp` computes the same as `ddp` up to rounding, while each worker keeps only a "
        "slice; equal numbers of workers give equal bits.",
        "fsdp-limits": "Features that `fsdp` does not support are refused; another number of "
        "workers warns, or is refused with `strict`.",
        "mnist-files": "MNIST's files may be plain or compressed; one that is missing, truncated, "
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
    "docs/champion.md": {
        "approval-followed": "A run that waits for approval is waiting in every list; its flow "
        "run follows an answer that a command gave, at once or with the next flow run, and no "
        "flow run trains the same data again meanwhile.",
        "approval-suspended": "A deployment's flow run that waits for approval is suspended, with "
        "the evidence in the form, and survives a restart of Prefect's server and worker.",
        "served": "MLflow serves the champion without pickle, and answers as the batch inference.",
    },
    "docs/cli.md": {
        "dry-run": "`--dry-run` takes one step through every stage.",
        "second-signal": "A second Ctrl-C ends everything at once.",
        "ui": "`ui` opens Prefect's and MLflow's pages; Ctrl-C ends both.",
    },
    "docs/cluster.md": {
        "cluster-code": "A workload's module and environment variables reach the workers by Ray's "
        "`runtime_env`.",
        "cluster-other-wish": "A request with other parameters than those of the job that trains "
        "the run is refused, and the error names the job.",
        "job-outlives-caller": "The job on a cluster trains on without its caller, and the next "
        "request for the run attaches to it.",
        "drained-nodes": "Workers leave a drained node at once, with a checkpoint, and nothing is "
        "computed twice.",
        "lost-nodes": "A node or a head that dies or is cut off costs only the steps since the "
        "last commit.",
        "in-place-on-a-cluster": "A worker that dies on a node of a cluster costs no step: the "
        "others train on, with a spare of its node if there are any.",
        "evicted-pods": "A pod of a Ray cluster that is evicted while a worker trains in it is "
        "left after a checkpoint, or after a report of a function, and nothing is done twice; a "
        "head that is evicted, and a Prefect worker, end like ones that lose their power.",
        "job-dies": "A job that dies is replaced by a new one.",
        "dashboard-away": "A job trains on while Ray's dashboard is away.",
    },
    "docs/operations.md": {
        "ray-dies": "A driver whose local Ray dies logs that and ends, so that the retry starts a "
        "new Ray.",
        "sigterm-of-a-function": "Where a worker of a training function gets SIGTERM, the report "
        "under way is finished, within `grace_s`, and another attempt goes on from it; a function "
        "that does not report in this time goes on from its newest checkpoint.",
        "slots-freed": "`evertrain slots --free` frees what no living flow run holds, and nothing "
        "of a flow run that lives or may live.",
        "slots-return": "If Prefect's server, its worker or both die while a flow run of a "
        "deployment with one slot is Pending, Running or Cancelling, the next one begins once the "
        "lease has ended.",
        "prefect-stays-away": "If Prefect's server stays away, the command ends soon after the "
        "report, with its usual exit code.",
        "memory": "A worker that is ended for its memory fails the run with an error that says so, "
        "and is not retried.",
        "scorer-hangs": "A worker that evaluates or infers and hangs is ended, and replaced.",
        "servers-with-logins": "A pipeline runs with servers of Prefect and MLflow that ask for "
        "logins.",
        "batch-without-mlflow": "Predictions are made although MLflow is away.",
    },
    "docs/prefect.md": {
        "notifications": "Each ending can send a message; the file of the notifications may be "
        "applied twice, and makes each automation once.",
        "schedule": "A schedule makes flow runs due at its times, and stays on or off when the "
        "deployment is deployed again.",
        "cancel": "The training of a flow that is cancelled saves a checkpoint, and a later flow "
        "run goes on from there.",
        "one-at-a-time": "One flow run of `retrain` trains at a time; the next one waits.",
        "automation": "The automation runs a flow again whose process died.",
        "night-without-news": "A scheduled flow run without new data ends as Skipped and begins "
        "no run.",
        "week-is-told": "Prefect's list of flow runs, MLflow's list and `runs list` say what "
        "became of each night: promoted, skipped, bad data, killed, rejected.",
    },
    "docs/search.md": {
        "tune-functions": "So is a trial of a training function, whose workers Ray Train starts in "
        "those places; its reports reach Tune with the folders that it reports, and without.",
        "tune-restored": "A trial whose process dies, that was paused, or whose search is "
        "restored, goes on with the run that it was at.",
    },
}
"""Promises whose tests take ten CPU seconds and more, or need an S3 server or networks."""
