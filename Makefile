# Rollbook's front door. `make` alone lists what it can do.
#
# Variables: PYTHON (the interpreter to make .venv with), WORKERS (parallel test processes, default: two more
# than there are cores, at most 4), ARGS (passed on to the target's command, as in: make test ARGS="-k lease -x").

VENV := .venv
BIN := $(VENV)/bin
# Half of the tests wait for processes, clocks and databases most of the time.
WORKERS ?= $(shell expr 2 + $$(getconf _NPROCESSORS_ONLN))
ARGS ?=
# Those of the code's folders that are there.
SOURCES := $(wildcard app client projections migrations tests examples benchmarks scripts)

# An exported PYTHON or the one of the command line reaches scripts/find_python.sh.
export PYTHON
# Hundreds of processes start in the tests: compiled modules are kept even where the environment says otherwise.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test chaos check format bench conformance lock install clean

help: ## List the targets
	@echo "make demo starts here. All targets:"
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.server ## Run 10 rows x 4 attempts end to end and show what the ledger knows
	@$(BIN)/rollbook demo $(ARGS)

test: $(VENV)/.dev ## Run all tests
	@$(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 4 --dist worksteal $(or $(ARGS),tests)

chaos: $(VENV)/.dev ## Kill, stop and cut processes and the database for minutes, and check that nothing is lost
	@$(BIN)/python -m tests.chaos $(ARGS)

check: $(VENV)/.dev ## Check format, lint, types and import direction
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy $(SOURCES)
	$(BIN)/python -m pytest -q tests/architecture

format: $(VENV)/.dev ## Format the code and apply the linter's safe fixes
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

bench: $(VENV)/.dev ## Measure speed and memory beside the reference server
	@$(BIN)/python -m benchmarks $(ARGS)

conformance: $(VENV)/.dev ## Compare answers on the wire with the reference's
	@$(BIN)/python -m scripts.conformance $(ARGS)

lock: ## Pin versions and hashes anew (ARGS=--upgrade takes the newest versions)
	@sh scripts/lock.sh $(ARGS)

install: $(VENV)/.dev ## Make .venv with everything for development

clean: ## Remove .venv, caches and build results (never a ledger)
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps, not folders: they exist only when the step before them ended well.
$(VENV)/.made:
	@python=$$(sh scripts/find_python.sh) && \
		echo "Making $(VENV) with $$python ..." >&2 && \
		rm -rf $(VENV) && "$$python" -m venv $(VENV)
	@touch $@

$(VENV)/.server: $(VENV)/.made requirements/server.lock pyproject.toml scripts/install.sh
	@sh scripts/install.sh server
	@touch $@

# The developers' lock holds the server's at the same versions: whoever has the first needs no second step.
$(VENV)/.dev: $(VENV)/.made requirements/dev.lock pyproject.toml scripts/install.sh
	@sh scripts/install.sh dev
	@touch $(VENV)/.server $@
