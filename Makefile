# Each target works as the first command after a clone: it makes .venv and installs what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Where it is set each process compiles all its modules anew: 1.4 s of CPU instead of 1.0 s for a daemon that starts and stops.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run check test test-all lint types imports docs site faults soak system-test bench clean

run: $(VENV)/.run
	$(BIN)/governor run examples/frozen_lake/run.yaml

# What is over soon: the pure parts, the run file, the command line.
PURE := tests/states tests/transport/test_broker_*.py tests/transport/test_frames.py tests/transport/test_envelope.py \
	tests/governor/cli tests/governor/run_file tests/governor/units \
	tests/governor/tasks/scheduling tests/governor/episodes/rules \
	tests/docs/test_pages.py tests/docs/test_matching.py tests/docs/test_fragments.py tests/docs/test_links.py \
	tests/docs/test_generated.py
check: lint types imports site
	$(BIN)/python -m pytest -q -n 2 -m "not long" $(PURE)

# Three at a time on two cores: some of a test is waiting for another process. With four each takes longer, and all together too.
WORKERS ?= 3
test: lint types imports site
	$(BIN)/python -m pytest -q -n $(WORKERS) -m "not long"

# What takes long: rare faults of whole process trees, large graphs, random stories by the thousand, foreign counterparts, the
# short fault campaign.
test-all: test
	HYPOTHESIS_PROFILE=long $(BIN)/python -m pytest -q -n $(WORKERS) -m "long or hypothesis" --timeout 900 -o faulthandler_timeout=895

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

imports: $(VENV)/.dev
	$(BIN)/lint-imports

# Writes the generated parts of the pages, and builds the site. Any warning fails it (never with --quiet: then none
# is counted).
docs: $(VENV)/.dev
	$(BIN)/python docs/tools/generate.py
	$(MAKE) site

site: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# FAULTS="--seed 4 --count 50" plays others, --fault "kill guards" those alone; what was played is in faults.sqlite and is
# not played again.
FAULTS ?= --seed 3 --count 500 --instances 3 --table docs/faults.md
faults: $(VENV)/.dev
	$(BIN)/python tests/faults/campaign.py $(FAULTS)

# A broker with keys for ten minutes, among strangers, floods and slow readers: memory, descriptors, rate and p99 must stay. SOAK="--seconds 60"
# takes one minute.
SOAK ?= --seconds 600
soak: $(VENV)/.dev
	$(BIN)/python tests/soak/soak.py $(SOAK)

# The service on a machine of its own, as docs/service.md, operations.md and network.md say, word by word: a Debian tree by debootstrap, booted in a
# container without a network. Root, debootstrap and systemd-nspawn are needed, and on the first time a network; the tree and the packages
# stay in MACHINE for the next time.
MACHINE ?= .machine
system-test: $(VENV)/.dev
	GOVERNOR_MACHINE=$(MACHINE) $(BIN)/python -m pytest -v -x -o faulthandler_timeout=895 tests/machine

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/run_all.py

clean:
	rm -rf $(VENV) .machine build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find governor states transport tests examples benchmarks docs -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: $(VENV)/bin/python setup.cfg pyproject.toml
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.dev: $(VENV)/bin/python setup.cfg pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[test,dev,docs]'
	touch $@
