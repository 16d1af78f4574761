# Each target works as the first command after a clone: it makes .venv and installs what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: run test lint types imports faults bench clean

run: $(VENV)/.run
	$(BIN)/governor run examples/frozen_lake/run.yaml

# Whole houses mostly wait: two at a time. The others measure, and have the machine to themselves.
test: lint types imports
	$(BIN)/python -m pytest -q --ignore=tests/system --ignore=tests/faults; rest=$$?; \
	$(BIN)/python -m pytest -q -n 2 tests/system tests/faults && exit $$rest

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

imports: $(VENV)/.dev
	$(BIN)/lint-imports

# FAULTS="--seed 2 --count 50" plays others; what was played is in faults.sqlite and is not played again.
FAULTS ?= --seed 1 --count 1000 --houses 3 --table docs/faults.md
faults: $(VENV)/.dev
	$(BIN)/python tests/faults/campaign.py $(FAULTS)

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/run_all.py

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: $(VENV)/bin/python setup.cfg pyproject.toml
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.dev: $(VENV)/bin/python setup.cfg pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[test,dev]'
	touch $@
