# make demo   set up, then: train, certify, and a report to open
# make test   set up, then everything that CI runs
# make check  ruff and mypy alone;  make bench  speed and memory, as ratios

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test check bench clean

demo: $(READY)
	$(BIN)/pprs demo

test: check
	$(BIN)/python -m pytest tests src -n auto --maxprocesses 4 --dist worksteal

check: $(READY)
	$(BIN)/ruff format --check src tests benchmarks docs
	$(BIN)/ruff check src tests benchmarks docs
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python -m benchmarks

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[test]'
	touch $@

clean:
	rm -rf $(VENV) build src/*.egg-info .mypy_cache .ruff_cache .pytest_cache
