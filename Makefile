# make demo   set up, then: train, certify, and a report to open
# make test   set up, then everything that CI runs
# make check  ruff and mypy alone;  make bench  speed and memory, as ratios
# make identity  that rows, old runs and committed figures are what they were

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TESTS ?= tests src

.PHONY: demo test identity check lint bench clean

demo: $(READY)
	$(BIN)/pprs demo

# Types are checked while the tests begin.
test: lint
	$(BIN)/mypy & types=$$!; \
	$(BIN)/python -m pytest $(TESTS) -n auto --maxprocesses 4 --dist worksteal --durations 20 && wait $$types

# What it compares is told test by test. PPRS_WRITE_IDENTITY=1 writes the expected rows anew.
identity: $(READY)
	$(BIN)/python -m pytest tests/golden/test_drawn.py tests/golden/test_identity.py -vv -n auto --maxprocesses 4 --dist worksteal

check: lint
	$(BIN)/mypy

lint: $(READY)
	$(BIN)/ruff format --check src tests benchmarks docs
	$(BIN)/ruff check src tests benchmarks docs

bench: $(READY)
	$(BIN)/python -m benchmarks

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[test]'
	touch $@

clean:
	rm -rf $(VENV) build src/*.egg-info .mypy_cache .ruff_cache .pytest_cache
