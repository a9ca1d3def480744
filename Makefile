# Everything happens in .venv; nothing is installed outside of this folder.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# Many tests wait for processes that they start, so there is work for one more than two cores.
TEST_PROCESSES ?= 3

.PHONY: demo test simulate chaos lint bench clean
.DELETE_ON_ERROR:

demo: $(VENV)/.run
	$(BIN)/fairlog demo

# Bytecode is written whatever the environment says: hundreds of processes would compile every module anew.
test: $(VENV)/.test
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses=$(TEST_PROCESSES) --dist=worksteal $(PYTEST_ARGS)

# So many seeds on all cores, or SEEDS=1000-2000; SEED=1234 runs that one alone and tells what went on.
simulate: $(VENV)/.test
	@$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),$(or $(SEEDS),2000))

# Five minutes of kills, stops and restarts, or SECONDS=60; SEED=7 draws the same ones again, REPLICATED=1 brings three stores.
chaos: $(VENV)/.test
	$(BIN)/python -m tests.chaos $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) $(if $(REPLICATED),--replicated)

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(VENV)/.test
	@for script in benchmarks/[a-z]*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fairlog needs Python 3.11 or later: make PYTHON=/path/to/python3.11 ...")'
	$(PYTHON) -m venv $(VENV)

# One stamp a purpose, made again whenever pyproject.toml changes. A later one includes the earlier ones.
$(VENV)/.run: pyproject.toml | $(BIN)/python
	$(PIP) --editable .
	@touch $@

$(VENV)/.test: pyproject.toml | $(BIN)/python
	$(PIP) --editable '.[test]'
	@touch $@ $(VENV)/.run

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.test $(VENV)/.run
