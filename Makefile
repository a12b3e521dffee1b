PYTHON ?= python3
BIN := .venv/bin
OLDEST := .venv-oldest
STAMP := .venv/.installed
QUICK := not slow and not s3 and not table
# Each of these loads a core and more; with three at a time they run out of time.
KILLS := tests/compat/attempts/test_kills.py
FAST := tests/policy tests/storage tests/datasets tests/rank/metrics \
	$(patsubst %,tests/rank/checkpoint/test_%.py,row_shards snapshot state) \
	tests/tools/test_compare.py tests/rank/test_loop.py
# They wait, to see how long something takes.
WAITING := $(patsubst %,tests/storage/coordination/test_%.py,lease holder) \
	$(patsubst %,tests/storage/objects/test_%.py,standstill retry_policy fault_proxy)

# Many short processes import evertrain: with its bytecode kept, each starts sooner.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv demo ui test test-fast test-all test-oldest exact hostile chaos soak night mutants check format bench-pipeline \
	bench-checkpoint bench-recovery bench-functions bench-listing bench-mirror bench-gpu clean

help: ## Show the targets
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

venv: $(STAMP) ## Make .venv with everything installed, at the tested versions

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit( \
		f"Python 3.11 or newer is needed, $(PYTHON) is {sys.version.split()[0]}: make PYTHON=python3.12 venv")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	# Of an earlier layout: where a program starts in this folder, it hides the entry points of the installed one.
	rm -rf evertrain.egg-info
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/python -m evertrain_flows.databases
	@touch $@

demo: $(STAMP) ## Retrain on handwritten digits; run it again and it goes on where it was killed
	$(BIN)/evertrain demo

ui: $(STAMP) ## Show runs in the browser: Prefect and MLflow
	$(BIN)/evertrain ui

test: $(STAMP) ## Run a real test of nearly every promise: minutes
	$(BIN)/pytest -m '$(QUICK)' -n 3 --phases

test-fast: $(STAMP) ## Run the tests of policy, storage, formats and the loop: less than a minute
	$(BIN)/pytest -m '$(QUICK)' -n 3 $(FAST) $(addprefix --ignore ,$(WAITING))

test-all: $(STAMP) ## Run all tests, those that need an S3 server and the slow ones too
	$(BIN)/pytest -m 'not table' -n 3 --phases --ignore $(KILLS)
	$(BIN)/pytest -n 2 $(KILLS)

test-oldest: ## Run a part of the tests, and the demo, with the oldest versions that pyproject.toml allows
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-oldest.txt -e '.[dev]'
	$(OLDEST)/bin/pytest -m '$(QUICK)' -n 3 $(FAST) tests/compat/test_private_names.py tests/flows/cli/test_demo.py \
		tests/tracking/test_contract.py
	EVERTRAIN_STORAGE=$$(mktemp -d) $(OLDEST)/bin/evertrain demo

exact: $(STAMP) ## Kill trainings at every point, on 1 to 8 workers: the full table of exactness
	$(BIN)/pytest tests/rank/test_exact.py tests/rank/test_entries.py tests/rank/test_in_place.py --verbose --durations=12

hostile: $(STAMP) ## Run the commands on 2,000 run folders that somebody has spoiled: most of an hour
	$(BIN)/pytest tests/hostile -m table -s

chaos: $(STAMP) ## Strike whole pipelines everywhere and compare each with an undisturbed one: hours
	$(BIN)/python -m tests.chaos

soak: $(STAMP) ## Retrain again and again for an hour with faults by chance, and look for leaks
	$(BIN)/python -m tests.chaos.soak

night: $(STAMP) ## Six firings of a schedule on data that grows; the server and the worker are killed once
	$(BIN)/python -m tests.chaos.night

mutants: $(STAMP) ## Put twenty faults into the code, one by one, and see which test notices: hours
	$(BIN)/python -m tests.mutants

check: $(STAMP) ## Check format, lint, types, the walls between the layers, and that promises have tests
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.promises --check

format: $(STAMP) ## Format the code and mend what ruff can mend
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench-pipeline: $(STAMP) ## Measure what the pipeline costs around the training
	$(BIN)/python -m benchmarks.pipeline

bench-checkpoint: $(STAMP) ## Measure what checkpoints cost beside their peers and limits
	$(BIN)/python -m benchmarks.checkpoint

bench-recovery: $(STAMP) ## Measure how soon a training goes on when a worker was killed
	$(BIN)/python -m benchmarks.recovery

bench-functions: $(STAMP) ## Measure what a training function of Ray Train's costs beside stock Ray Train
	$(BIN)/python -m benchmarks.functions

bench-listing: $(STAMP) ## Measure how long listings of 2,000 checkpoints and of 2,000 runs take
	$(BIN)/python -m benchmarks.listing

bench-mirror: $(STAMP) ## Measure what mirroring to MLflow costs the training, and how fast it sends
	$(BIN)/python -m benchmarks.mirror

bench-gpu: $(STAMP) ## Measure on a GPU what checkpoints cost, and how fast a small model trains
	$(BIN)/python -m benchmarks.gpu

clean: ## Delete caches; runs and .venv stay
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache *.egg-info
	find . -path ./.venv -prune -o -name __pycache__ -print0 | xargs -0 rm -rf
