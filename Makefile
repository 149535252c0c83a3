# One word for each thing a developer does. `make` alone lists them.

PYTHONS := python3.11 python3.12 python3.13 python3 python
VENV    := .venv
BIN     := $(VENV)/bin
# Named by what they are made from: a changed file, not a touched one, installs anew.
LOCKED  := $(VENV)/locked-$(shell cksum < requirements.lock | tr ' ' '-')
READY   := $(VENV)/ready-$(shell cksum < pyproject.toml | tr ' ' '-')
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --all-extras \
           --generate-hashes --no-emit-index-url --no-header pyproject.toml
PIP     := $(BIN)/pip install --quiet --disable-pip-version-check
PYTEST  := $(BIN)/pytest

# Tests start Python hundreds of times: where compiled files are switched off, half of each start is
# compiling.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup demo example dev test check services simulate faults chaos planted bench bench-peers generate verify lock clean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(LOCKED) $(READY)  ## Make the environment and fetch the servers (does nothing when done)

demo: setup  ## See jobs run, fail, be retried and survive a kill, on real servers
	$(BIN)/ledger demo

example: setup  ## Run stories of examples/ (NAME="... ..."; without it: list them)
	$(BIN)/python -m cli.run_example $(NAME)

dev: setup  ## Run everything here, until Ctrl-C
	$(BIN)/ledger dev

test: setup  ## Run every test, the chaos ones too, WORKERS=2 files at a time (20 minutes on two cores)
	$(PYTEST) -n $(or $(WORKERS),2) --dist loadfile --no-loadscope-reorder

check: setup  ## Run what CI runs before the tests: format, lint, types, layers, lock, generated docs
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	@fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT \
	  && cp requirements.lock "$$fresh/requirements.lock" \
	  && $(COMPILE) --output-file "$$fresh/requirements.lock" >/dev/null \
	  && diff -u requirements.lock "$$fresh/requirements.lock" \
	  || { echo "requirements.lock does not fit pyproject.toml: run 'make lock'" >&2; exit 1; }
	@if [ -f cli/generate.py ]; then $(BIN)/python -m cli.generate --check; fi

services: setup  ## Run the tests that need real servers
	$(PYTEST) tests/services

simulate: setup  ## Run the real code in worlds full of faults (SEEDS=1000 FROM=0), see docs/simulation.md
	$(BIN)/python -m tests.simulation --seeds $(or $(SEEDS),1000) --from $(or $(FROM),0)

faults: setup  ## Run the tests that kill, pause and cut off real processes
	LEDGER_TEST_ALL_DEATHS=1 $(PYTEST) tests/chaos

planted: setup  ## Plant bugs in copies of the tree, and see that tests catch each (ONLY=..., LIST=1)
	$(BIN)/python -m tests.planted $(if $(ONLY),--only $(ONLY)) $(if $(LIST),--list)

chaos: setup  ## Raise a storm of faults on three brokers (SECONDS=240 SEED=... RECORD=1; docs/storms.md)
	RECORD=$(RECORD) $(BIN)/python -m tests.chaos --seconds $(or $(SECONDS),240) $(if $(SEED),--seed $(SEED))

bench: setup  ## Measure against the gates, in ten minutes (FULL=1 ONLY=replay; docs/performance.md)
	$(BIN)/python -m benchmarks $(ONLY) $(if $(FULL),--full)

bench-peers: setup  ## Measure PgQueuer, Procrastinate and others beside us, each in turn (12 minutes)
	$(BIN)/python -m benchmarks.peers

generate: setup  ## Write the documents that are made from the code
	$(BIN)/python -m cli.generate

verify: setup  ## Check the log of the servers of `make dev`: chain, order, read models
	$(BIN)/ledger verify

lock: setup  ## Bring requirements.lock up to date with pyproject.toml, newer versions only if asked
	$(COMPILE) --output-file requirements.lock $(UPGRADE)

clean:  ## Remove the environment, the caches and the data of `make dev`
	@if [ -d .ledger ]; then $(BIN)/python -m ledger.embedded erase .ledger; fi
	rm -rf $(VENV) .ledger-peers .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

$(READY): $(LOCKED)
	$(PIP) --no-build-isolation --no-deps --editable .
	$(BIN)/python -m ledger.embedded fetch
	@touch $@

$(LOCKED):
	@for python in $(VENV)/bin/python $(PYTHONS); do \
	  if $$python -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    found=$$python; break; \
	  fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "Python 3.11 or newer with its venv module is missing." >&2; \
	  echo "  Debian: apt-get install python3 python3-venv    macOS: brew install python@3.13" >&2; \
	  exit 1; \
	fi; \
	[ "$$found" = $(VENV)/bin/python ] || { echo "making $(VENV) with $$found"; $$found -m venv --clear $(VENV); }
	$(PIP) --require-hashes -r requirements.lock
	@touch $@
