# Every target makes its own set-up: a fresh clone needs python3 (3.11 or later) with venv and pip, and nothing else.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
# The demo needs Tenure's own dependencies and nothing else, so it has a small environment of its own.
DEMO_VENV := .venv-demo
DEMO_STAMP := $(DEMO_VENV)/.ready
URL ?=
ARGS ?=

# Twice the processors: about half of all tests wait, for a disk, a lease or another process. WORKERS=0 runs them in turn.
WORKERS ?= $(shell expr 2 \* $$(getconf _NPROCESSORS_ONLN))
# A module's tests stay together, for what they share, until a worker has nothing left to do.
PYTEST = $(BIN)/pytest --numprocesses $(WORKERS) --dist worksteal

# Tests start Python hundreds of times, and without compiled files each time compiles Tenure anew.
unexport PYTHONDONTWRITEBYTECODE

define CHECK_PYTHON
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	|| { echo "Tenure needs Python 3.11 or later; '$(PYTHON)' is older. Run: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
endef

.DEFAULT_GOAL := help
.PHONY: docs help setup demo demo-postgres check test test-quick bench chaos screens

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' Makefile

setup: $(STAMP) ## Build .venv from the pinned requirements (again only when they change)

# The stamp is written last: an interrupted set-up is simply run again.
$(STAMP): requirements/dev.txt pyproject.toml
	@$(CHECK_PYTHON)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(DEMO_STAMP): requirements/core.txt
	@$(CHECK_PYTHON)
	test -x $(DEMO_VENV)/bin/python || $(PYTHON) -m venv $(DEMO_VENV)
	$(DEMO_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/core.txt
	@touch $@

demo: $(DEMO_STAMP) ## Show Tenure at work on a SQLite file
	PYTHONPATH=src $(DEMO_VENV)/bin/python -m tenure.cli.main demo $(ARGS)

demo-postgres: $(STAMP) ## The same on PostgreSQL, started for the demo and stopped after it (on yours: URL=postgresql://…)
	$(BIN)/tenure demo $(if $(URL),--url '$(URL)',--postgres) $(ARGS)

docs: $(STAMP) ## Write the generated parts of the docs anew
	$(BIN)/python -m docs.generate
	$(BIN)/python -m tenure.cli.reference > docs/reference/cli.md

check: $(STAMP) ## Lint, format, types, generated files fresh
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m docs.generate --check

test: $(STAMP) ## Run all tests, on both engines, in parallel (a part of them: ARGS='tests/unit -k house')
	$(PYTEST) $(ARGS)

test-quick: $(STAMP) ## Run the tests that take little time
	$(PYTEST) -m 'not slow' $(ARGS)

bench: $(STAMP) ## Measure Tenure beside its peers and write docs/benchmarks.md (a trial: ARGS=--quick)
	$(BIN)/python -m benchmarks $(ARGS)

# The pages of a claim beside 1,000,000 rows, and all of the conformance suite on PostgreSQL 15, belong to it.
LONG_TESTS := tests/fault tests/stateful tests/conformance tests/sqlite/test_pages.py tests/postgres/test_plans.py

chaos: $(STAMP) ## Kill, cut and race in the long form: minutes, not seconds
	TENURE_LONG=1 $(BIN)/pytest $(LONG_TESTS) $(ARGS)

screens: $(STAMP) ## Record the screens of the docs anew (needs tmux)
	$(BIN)/python docs/screens/record.py $(ARGS)
