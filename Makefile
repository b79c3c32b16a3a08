# make demo   a real model writes a marked text, wm-detect finds the mark
# make test   lint, types and every test
# make lint, make types, make quick: parts of it
# make bench: figures of docs/benchmarks.md; make bench-gpu: those that need a GPU
#
# PYTHON=python3.12       another interpreter, 3.11 or newer
# TORCH_INDEX=URL         a package index with CPU builds of torch

PYTHON ?= python3
TORCH_INDEX ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
CONSTRAINTS := -c .ci/constraints.txt

.DELETE_ON_ERROR:
.PHONY: venv dev demo test lint types quick bench bench-gpu clean

venv: $(VENV)/.serve
dev: $(VENV)/.dev

$(VENV)/.serve: pyproject.toml .ci/constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed, $(PYTHON) is older or missing; name one with PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "Python's venv module is missing; run: sudo apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet $(CONSTRAINTS) --upgrade pip
ifneq ($(TORCH_INDEX),)
	$(PIP) install --quiet $(CONSTRAINTS) --index-url $(TORCH_INDEX) torch
endif
	$(PIP) install --quiet $(CONSTRAINTS) --editable '.[serve]'
	@touch $@

$(VENV)/.dev: $(VENV)/.serve
	$(PIP) install --quiet $(CONSTRAINTS) --group dev
	@touch $@

demo: venv
	$(BIN)/python -m tokenmark.eval.demo

test: lint types
	$(BIN)/python -m pytest -m 'not gpu'

quick: dev
	$(BIN)/python -m pytest

lint: dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: dev
	$(BIN)/mypy -p tokenmark

bench: venv
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m tokenmark.eval.overhead

bench-gpu: venv
	@$(BIN)/python -m tokenmark.eval.overhead --tier gpu

clean:
	rm -rf $(VENV) .demo .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist *.egg-info
