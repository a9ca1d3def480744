# Everything is installed in .venv, nothing outside this folder.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# Many tests wait for child processes, so use more test processes than cores.
TEST_PROCESSES ?= 5

.PHONY: demo demo-spark test test-compiled test-spark spark-python test-clients properties simulate explore chaos hosts lint measures bench lock clean
.DELETE_ON_ERROR:

# KEEP=1: the cluster stays up afterwards, until Ctrl-C.
demo: $(VENV)/.run
	$(BIN)/fairlog demo $(if $(KEEP),--keep)

# Two companies' Spark apps beside shell tasks on a full cluster. Says what is missing where there is no Java or Spark.
demo-spark: $(VENV)/.run
	@if command -v java >/dev/null && [ -z "$$SPARK_HOME" ]; then $(MAKE) --no-print-directory $(SPARK_PYTHON); fi
	@if [ -z "$$SPARK_HOME" ] && [ -x $(SPARK_PYTHON) ]; then export PYSPARK_PYTHON=$(CURDIR)/$(SPARK_PYTHON); \
		SPARK_HOME=$$($(SPARK_PYTHON) -c 'import pyspark; print(pyspark.__path__[0])'); export SPARK_HOME; fi; \
		$(BIN)/python -m fairlog.engines.spark.demo

# Always write bytecode: the tests start hundreds of processes, each of which would compile every module.
test: $(VENV)/.test
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses=$(TEST_PROCESSES) --dist=worksteal $(PYTEST_ARGS)

# The suite on a wheel whose modules that decide are compiled, in an environment and a folder of their own; without the
# tests that read sources, or replace a function or an object of these modules.
COMPILED := $(VENV)/compiled
REPLACE := docs test_architecture.py unit/test_compiled.py unit/scheduler/rules/test_rules_cited.py \
	simulation/test_planted.py exploration/test_explored.py integration/fairlog/test_printed.py
test-compiled:
	rm -rf $(COMPILED) && mkdir -p $(COMPILED)/tree
	$(PYTHON) -m venv $(COMPILED)/venv
	FAIRLOG_COMPILED=1 $(COMPILED)/venv/bin/python -m pip install --quiet --disable-pip-version-check '.[test]'
	git ls-files | grep -vE '^(fairlog|recovery|scheduler|witness|workers)/' | xargs cp --parents -t $(COMPILED)/tree
	cd $(COMPILED)/tree && ../venv/bin/python -m pytest --numprocesses=$(TEST_PROCESSES) --dist=worksteal \
		$(REPLACE:%=--ignore=tests/%) \
		-k 'not test_a_command_that_breaks_a_turn and not that_makes_a_turn_fail and not test_a_ledger_that_goes_wrong' $(PYTEST_ARGS)

# Real Spark jobs, with Java of this machine. SPARK=3.5.9: of this version; it is installed in a folder of its own.
SPARK ?= 4.3.0
SPARK_PYTHON := $(VENV)/spark-$(SPARK)/bin/python
test-spark: $(VENV)/.test $(SPARK_PYTHON)
	SPARK_HOME=$$($(SPARK_PYTHON) -c 'import pyspark; print(pyspark.__path__[0])') PYSPARK_PYTHON=$(CURDIR)/$(SPARK_PYTHON) \
		FAIRLOG_TEST_SPARK=1 $(BIN)/python -m pytest --numprocesses=0 -rs tests/integration/fairlog/test_spark_run.py $(PYTEST_ARGS)

spark-python: $(SPARK_PYTHON)
	@echo $(SPARK_PYTHON)

# Spark 3.5 needs setuptools: Python 3.12 and later have no distutils.
$(SPARK_PYTHON): | $(BIN)/python
	$(PYTHON) -m venv $(VENV)/spark-$(SPARK)
	$@ -m pip install --quiet --disable-pip-version-check "pyspark[connect]==$(SPARK)" setuptools

# The plugins in the programs that they are for, Snakemake and JupyterHub, and programs that know Slurm, installed in a
# folder of their own.
CLIENTS_PYTHON := $(VENV)/clients/bin/python
CLIENTS := snakemake pytest jupyterhub notebook clusterfutures dask-jobqueue executorlib[cluster] fireworks ipyparallel \
	maestrowf mpi4py mpich myqueue nipype parsl psij-python pysqa qbatch qtoolkit reframe-hpc reportseff signac-flow \
	simple_slurm slurm2sql submitit toil turm
test-clients: $(VENV)/.test $(CLIENTS_PYTHON)
	CLIENTS_PYTHON=$(CURDIR)/$(CLIENTS_PYTHON) $(BIN)/python -m pytest --numprocesses=0 -rs \
		tests/integration/fairlog/test_snakemake.py tests/integration/fairlog/test_jupyterhub.py \
		tests/integration/fairlog/test_slurm_clients.py tests/integration/fairlog/test_gangs.py $(PYTEST_ARGS)

$(CLIENTS_PYTHON): | $(BIN)/python
	$(PYTHON) -m venv $(VENV)/clients
	$@ -m pip install --quiet --disable-pip-version-check --editable . $(CLIENTS)

# Each property on so many examples: the suite tries 12 to 120 of each.
EXAMPLES ?= 20000
properties: $(VENV)/.test
	EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest --numprocesses=auto tests/property $(PYTEST_ARGS)

# SEEDS=2000 (default) or SEEDS=1000-2000: these seeds, on all cores. SEED=1234: this seed only, with a trace.
simulate: $(VENV)/.test
	@$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),$(or $(SEEDS),2000))

# Every order of ends, submissions and times of small clusters: so many of them, drawn from all; WORLDS=0: all of them.
# STATES=400: so many states of each. SECONDS=600: begin no cluster after that. SEED=2: another draw.
WORLDS ?= 2000
explore: $(VENV)/.test
	@$(BIN)/python -m tests.exploration --worlds $(WORLDS) $(if $(STATES),--states $(STATES)) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED))

# Random kills, stops and restarts for five minutes or SECONDS=60. SEED=7 repeats a run, REPLICATED=1 uses three stores.
chaos: $(VENV)/.test
	$(BIN)/python -m tests.chaos $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) $(if $(REPLICATED),--replicated)

# The hosts of a cluster as network namespaces, as root: cut off, stopped and killed for 20 minutes or SECONDS=300.
# FAULT='primary deaf': this one alone. FROM=REVISION: no fault, but an upgrade from there, program by program.
# SERVER=redis: the system's redis-server instead of Valkey. SEED=7 repeats a run.
hosts: $(VENV)/.test
	$(BIN)/python -m tests.hosts $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) $(if $(SERVER),--server $(SERVER)) $(if $(FAULT),--fault '$(FAULT)') $(if $(FROM),--from '$(FROM)')

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/oxfmt --check fairlog/page/static/*.js
	$(BIN)/oxlint --quiet fairlog/page/static
	$(BIN)/mypy

# What the house measures of itself. JSON=1: as JSON.
measures: $(VENV)/.test
	@$(BIN)/python -m tests.measures $(if $(JSON),--json)

bench: $(VENV)/.test
	@for script in benchmarks/[a-z]*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

# The exact versions and hashes of what the image installs, and builds with; run it again to renew them.
COMPILE_LOCK = $(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 \
	--upgrade --generate-hashes --no-emit-index-url --no-header --quiet
lock: $(VENV)/.dev
	$(PIP) uv
	$(COMPILE_LOCK) --extra archive --output-file requirements.lock
	printf '%s\n' 'hatchling>=1.25' 'mypy>=2,<3' 'setuptools>=77' | \
		$(COMPILE_LOCK) - --constraint requirements.lock --output-file requirements-build.lock

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fairlog needs Python 3.11 or later: make PYTHON=/path/to/python3.11 ...")'
	@$(PYTHON) -m venv $(VENV)

# Says in one sentence what is installed, and shows what pip prints if it fails. $(1): the package; $(2): what it is.
define install
	@echo "Installing $(2) into $(VENV); the first time takes a minute or two"
	@said=$$(mktemp) && if $(BIN)/python -m pip install --disable-pip-version-check --editable '$(1)' >"$$said" 2>&1; \
		then rm "$$said"; else cat "$$said" >&2; rm "$$said"; exit 1; fi
endef

# One stamp per set of dependencies, rebuilt when pyproject.toml changes. Each set includes the sets above it.
$(VENV)/.run: pyproject.toml | $(BIN)/python
	$(call install,.,fairlog and what it needs)
	@touch $@

$(VENV)/.test: pyproject.toml | $(BIN)/python
	$(call install,.[test],fairlog and what its tests need)
	@touch $@ $(VENV)/.run

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(call install,.[dev],fairlog and what its development needs)
	@touch $@ $(VENV)/.test $(VENV)/.run
