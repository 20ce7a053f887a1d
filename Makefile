# Every target sets up what it needs by itself; `make` alone lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
WORKERS := $(shell expr $$(nproc) + 2)
PYTEST := --workers $(WORKERS) --durations 10

# The tests start thousands of processes; without bytecode each of them would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup run serve test tests test-all test-fast times faults lint check conformance docs bench bench-peers dist

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv and install Standfast in it, with the tools for development
	@:

run: setup ## see it work: a tour of the sandbox
	@$(BIN)/standfast tour

serve: setup ## serve the demo agents over HTTP, on http://127.0.0.1:8000
	@$(BIN)/standfast serve

# Lint runs while pytest collects the tests, which takes one core. mypy is a test here.
test: setup ## lint, and every test, with a sample of the crash points and of the large tables
	@$(MAKE) --no-print-directory -j2 check tests

test-all: export STANDFAST_TEST_SEED := all
test-all: test ## lint, and every test with every crash point and every case; takes an hour

tests: setup
	@$(BIN)/python -m pytest $(PYTEST)

test-fast: setup ## the tests that need less than 50 ms and no server
	@$(BIN)/python -m pytest $(PYTEST) -m "not slow"

times: setup ## run the tests and list those that `make test-fast` leaves out, in tests/running/times.txt
	@$(BIN)/python -m pytest $(PYTEST) --write-times

faults: setup ## kill, stop and cut off workers for SECONDS, with ENGINE=postgres or restate and a SEED, and report
	@$(BIN)/python tests/worker/faults.py --engine $(or $(ENGINE),postgres) --seconds $(or $(SECONDS),600) \
		$(if $(SEED),--seed $(SEED))

lint: check ## ruff, mypy, the layer rules and words
	@$(BIN)/mypy

check: setup ## lint without mypy: takes seconds
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports
	@$(BIN)/python scripts/check_words.py

conformance: setup ## show what each engine does, as a table of behaviours
	@$(BIN)/python -m pytest -q tests/conformance --conformance-table

docs: setup ## build the documentation site into `site`; a broken link or reference fails
	@rm -rf site
	@$(BIN)/zensical build --strict

bench: setup ## measure the sandbox, engines, turns, plugins, cells and providers
	@$(BIN)/python bench/sandbox.py
	@$(BIN)/python bench/engines.py
	@$(BIN)/python bench/turns.py
	@$(BIN)/python bench/plugins.py
	@$(BIN)/python bench/code.py
	@$(BIN)/python bench/providers.py
	@$(BIN)/python bench/mcp_calls.py
	@$(BIN)/python bench/server.py
	@$(BIN)/python bench/scale.py
	@$(BIN)/python bench/workbench.py

bench-peers: setup ## measure Standfast beside other frameworks and its floor; ARGS="--quick --only turns" for less
	@$(BIN)/python bench/peers $(ARGS)

dist: setup ## build the packages, and install and import each in a fresh environment
	@scripts/check-dist $(BIN)/python

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Standfast needs Python 3.11 or later: make PYTHON=/path/to/python3 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' \
		|| { echo "$(PYTHON) cannot make virtual environments; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(STAMP): pyproject.toml scripts/setup-engines tests/npm/package-lock.json | $(BIN)/python
	@echo "installing Standfast into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@scripts/setup-engines $(VENV)
	@touch $@
