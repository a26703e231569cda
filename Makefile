# make demo   set up the package and what it runs, then: certify, and a report to open
# make test   set up the rest, then everything that CI runs
# make nightly  the same, and the redraw of all figures even if nothing that it depends on has changed
# make mutants  what the tests find: one small mistake at a time in the modules that claims depend on; hours
# make durations  the table of what the tests take, from the last `make test`
# make quick  the fast tests, which need neither a browser nor Ray
# make check  ruff and mypy only;  make bench  speed and memory, as ratios
# make docs   the documentation site, in site/
# make screenshots  the pictures of the app in docs, with Chromium; a test says when they are of an older version
# make dist   sdist and wheel in dist/, with the pinned build backend; the wheel is then installed elsewhere and used
# make identity  check that rows, old runs, keys and committed figures are unchanged
# make reproduce-check  check the committed results: manifest against rows, and figures drawn again byte for byte

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := $(VENV)/.demo
READY := $(VENV)/.ready
TESTS ?= tests src
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal
# Tests start many processes. Without bytecode files each of them would compile all of torch's Python again.
unexport PYTHONDONTWRITEBYTECODE

SITE := site

.PHONY: demo docs screenshots dist test nightly mutants durations quick identity reproduce-check check lint bench clean

demo: $(DEMO)
	$(BIN)/pprs demo

docs: $(READY)
	@$(BIN)/python -c 'import latex2mathml, material, mkdocs, mkdocstrings' 2>/dev/null || { \
	  echo "make docs needs the docs extra. Install it with:"; \
	  echo "  $(BIN)/pip install --constraint constraints.txt --editable '.[docs]'"; exit 1; }
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet --site-dir $(SITE)
	@echo "Open $(SITE)/index.html in a browser. It works offline."

screenshots: $(READY)
	$(BIN)/python tests/app/screenshots.py docs

# The wheel is built from the sdist, in an environment of its own, so that no file of this folder can slip in.
dist: $(READY)
	$(BIN)/pip install --quiet --constraint constraints.txt build
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m build --outdir dist .
	PPRS_DIST=$(CURDIR)/dist $(BIN)/python -m pytest -q tests/cli/test_dist.py --fail-on-skip

# Types are checked while the tests begin.
test: lint
	$(BIN)/mypy & types=$$!; \
	$(PYTEST) $(TESTS) --fail-on-skip --unless-redrawn --durations 20 --junit-xml build/tests.xml && wait $$types

# What has been drawn again is noted in tests/golden/redrawn.json, to be committed.
nightly: test
	$(BIN)/python -m pytest tests/golden --note-redrawn --fail-on-skip

mutants: $(READY)
	nice $(BIN)/python -u -m benchmarks.mutants

durations:
	$(BIN)/python -m benchmarks.durations build/tests.xml

quick: $(READY)
	$(PYTEST) $(TESTS) -m 'not slow and not browser and not ray and not needs_data' --fail-on-skip

# -vv lists what is compared. PPRS_WRITE_IDENTITY=1 writes the expected rows anew.
identity: $(READY)
	$(PYTEST) tests/golden/test_drawn.py tests/golden/test_identity.py -vv

reproduce-check: $(READY)
	$(BIN)/python -m pytest tests/golden/test_drawn.py -vv

check: lint
	$(BIN)/mypy

lint: $(READY)
	$(BIN)/ruff format --check src tests benchmarks docs examples
	$(BIN)/ruff check src tests benchmarks docs examples

bench: $(READY)
	$(BIN)/python -m benchmarks

$(DEMO): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[report]'
	touch $@

$(READY): $(DEMO)
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[test]'
# Only its files of time series are read. It requires an older numba than everything else does.
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --no-deps aeon
	touch $@

clean:
	rm -rf $(VENV) $(SITE) build src/*.egg-info .mypy_cache .ruff_cache .pytest_cache
