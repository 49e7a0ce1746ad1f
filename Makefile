# rollout-traces. `make help` lists what there is.
PYTHON ?= python3
BIN := .venv/bin
SYNC := UV_PROJECT_ENVIRONMENT=.venv $(BIN)/uv sync --frozen --inexact --quiet
PYTEST := $(BIN)/python -m pytest
PRETTIER := npx --yes prettier@3.10.1
SCRIPTS := "rollout_traces/inspector/**/*.js" "tests/inspector/**/*.mjs" "examples/**/*.js"
JOBS ?= 2
SERVE ?= 1
DEMO_ARGS ?=
export HF_HUB_OFFLINE ?= 1
export GRADIO_ANALYTICS_ENABLED ?= False
export TOKENIZERS_PARALLELISM ?= false
# A process that may not keep what it compiled compiles all it imports each time: seconds, and the tests start hundreds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo example site tour test lint types unit browser long slow test-trainers faults contract mutants all oldest pythons ranges benchmarks format clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 24

demo: .venv/.demo ## trains a tiny model with GRPO on this machine, then opens the inspector (SERVE=0: only trains)
	@$(BIN)/python examples/tiny_grpo.py $(DEMO_ARGS)
	@echo "To open it, now or later: $(BIN)/rollout-traces show --project tiny-grpo"
	@if [ "$(SERVE)" != "0" ]; then exec $(BIN)/rollout-traces show --project tiny-grpo; fi

example: .venv/.demo ## trains the run that `show --example` opens anew, and writes it into the package
	$(BIN)/python examples/make_example.py

site: .venv/.test ## the docs with the example run inside, as a folder for any web server: site/
	rm -rf site
	$(BIN)/python -m sphinx -q -W -b html docs site
	cp -r rollout_traces/example_run site/tiny-grpo
	$(BIN)/rollout-traces export troubled -p site/tiny-grpo site/example -f site
	rm -r site/tiny-grpo

tour: site ## the moving picture of the README, from that site
	$(BIN)/python -m tests.inspector.take_tour site/example

test: lint types unit ## lint, types, and every test but the long and the slow ones

lint: .venv/.test ## ruff and prettier: lint and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(PRETTIER) --check $(SCRIPTS)

types: .venv/.test ## mypy
	$(BIN)/mypy

unit: .venv/.test browser ## the tests, in parallel
	$(PYTEST) -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "not slow and not long and not trainers" --ignore=tests/cli/test_explain.py
	$(PYTEST) tests/cli/test_explain.py -m "not slow" # in a process that no other test has touched

browser: .venv/.test ## Chromium for the browser tests: the system's, else Playwright's where the network allows it
	@for each in chromium-headless-shell chromium chromium-browser google-chrome; do command -v $$each && exit; done >/dev/null \
	|| timeout 300 $(BIN)/playwright install --only-shell chromium >/dev/null 2>&1 \
	|| true # pytest says in one line what it skips, and how to get it

long: .venv/.test browser ## what `make test` leaves out of the pages and journeys: the longest cases, in parallel
	$(PYTEST) -n $(JOBS) --dist loadfile --no-loadscope-reorder -m long

slow: .venv/.test ## the slow tests: learning on three seeds, whole vocabularies, long fuzzing
	$(PYTEST) -m slow

test-trainers: ## the real AReaL, TRL and verl, each in an environment of its own
	$(PYTHON) tests/trainers/run.py

faults: .venv/.test ## crashes, full and slow disks, lost servers: the whole fault suite, with its table
	ROLLOUT_TRACES_KILLS=30 ROLLOUT_TRACES_FUZZ=2000 ROLLOUT_TRACES_PACE=100 ROLLOUT_TRACES_FULL_SIZE=1 $(PYTEST) tests/faults -m "slow or not slow" -s

mutants: .venv/.test ## whether the tests notice a change: sixty mutants of the package, drawn anew (MUTANTS="--seed 4711")
	$(BIN)/python -m tests.mutants $(MUTANTS)

all: test long slow faults test-trainers mutants ## everything there is

contract: .venv/.test ## what is read back of Trackio, with another version of it: make contract TRACKIO=0.44.0
	$(BIN)/python -m pip install -q --no-deps --upgrade --target .venv/trackio-$(TRACKIO) trackio==$(TRACKIO)
	PYTHONPATH=.venv/trackio-$(TRACKIO) ROLLOUT_TRACES_TRACKIO=$(TRACKIO) $(PYTEST) tests/sink tests/test_write_path.py

benchmarks: .venv/.test ## every benchmark, with its baseline
	for name in decode metrics flags logging store inspector; do $(BIN)/python -m benchmarks.$$name || exit 1; done

format: .venv/.test ## ruff and prettier: format and sort
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(PRETTIER) --write $(SCRIPTS)

clean: ## removes the environments and caches
	rm -rf .venv .venv-* .pytest_cache .mypy_cache .ruff_cache .hypothesis artifacts

oldest: .venv-oldest/.done ## what the package stands on at the oldest versions that pyproject.toml allows
	.venv-oldest/bin/python -m pytest -n $(JOBS) -m "not slow and not trainers and not browser" $(OLDEST)

PYTHONS ?= 3.10 3.12 3.13
WITHOUT_PAGES := tests/model tests/settings tests/capture tests/decode tests/logger tests/stats tests/sources tests/export

pythons: .venv/bin/uv ## what needs no page, on other Pythons of this machine, or uv's: make pythons PYTHONS=3.13
	@for version in $(PYTHONS); do \
	  { [ -d .venv-$$version ] || "$$($(BIN)/uv python find $$version || { $(BIN)/uv python install -q $$version && $(BIN)/uv python find $$version; })" -m venv .venv-$$version; } \
	  && .venv-$$version/bin/python -m pip install -q -c constraints.txt torch \
	  && UV_PROJECT_ENVIRONMENT=.venv-$$version $(BIN)/uv sync --frozen --inexact --quiet --extra test \
	  && .venv-$$version/bin/python -m pip install -q --no-deps --ignore-requires-python 'trl>=1.16,<2' \
	  && .venv-$$version/bin/python -m pytest -n $(JOBS) -m "not slow and not trainers and not browser" $(WITHOUT_PAGES) || exit 1; done

EXTRAS := train reading inspector remote ray mcp plot docs

ranges: .venv/bin/uv ## whether pyproject.toml resolves, each extra alone and all of them, at its oldest and newest for every supported Python
	@for python in 3.10 3.11 3.12 3.13; do for how in lowest-direct highest; do for what in $(EXTRAS:%=--extra=%) --all-extras; do \
	  $(BIN)/uv pip compile -q pyproject.toml $$what --python-version $$python --resolution $$how -o /dev/null \
	  && echo "$$python $$how $$what resolves" || exit 1; done; done; done

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/bin/uv: .venv/bin/python constraints.txt
	@echo "Installing uv into .venv …"
	@$(BIN)/python -m pip install -q -c constraints.txt uv
	@touch $@

.venv/.torch: .venv/bin/uv
	@echo "Installing PyTorch into .venv: about 200 MB on a CPU, minutes on a slow line …"
	@$(BIN)/python -m pip install -q --no-compile -c constraints.txt torch
	@touch $@

.venv/.demo: .venv/.torch pyproject.toml uv.lock
	@echo "Installing rollout-traces and what it needs …"
	@$(SYNC) --extra inspector --extra train
	@touch $@

.venv/.test: .venv/.torch pyproject.toml uv.lock
	@echo "Installing rollout-traces and what its tests need …"
	@$(SYNC) --extra test
	@touch $@ .venv/.demo

.venv-oldest/.done: .venv/bin/uv pyproject.toml
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install -q -c constraints.txt torch uv
	$(BIN)/uv pip install -q --python .venv-oldest --resolution lowest-direct -e '.[test]'
	@touch $@
