# make demo   everything on embedded data, offline once installed
# make test   all extras, then the tests (the default tier; `make slow` runs the long ones)
# make check  format, lint, strict types, layers, the documentation's links
# make docs   the documentation as a site, in site/
# make bench  benchmarks, which print ratios
# make tables the documents of results, from the records in results/
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet -c constraints.txt
CORE := $(VENV)/.core-installed
ALL := $(VENV)/.all-installed
DOCS := $(VENV)/.docs-installed
# Material for MkDocs prints a notice about its successor before every build; the variable silences it.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# OpenMP threads that spin while they wait ruin each other on a machine with other work: on 2 busy cores the demo burnt
# about 100 s of CPU time with spinning, 25 s without.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: demo test slow check docs format bench tables clean

demo: $(CORE)
	$(BIN)/fastntk demo --out demo-out

# Two workers of one thread each: on two cores that is nearly twice as fast as one worker of two threads.
test: $(ALL)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

slow: $(ALL)
	$(BIN)/python -m pytest -m slow

check: $(ALL)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache > $(VENV)/layers.log || { cat $(VENV)/layers.log; exit 1; }
	$(MKDOCS) --quiet

docs: $(DOCS)
	$(MKDOCS)

format: $(ALL)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(ALL)
	$(PIP) -c benchmarks/constraints.txt -e '.[timm,hf,peft,lightning,test,bench]'
	$(BIN)/python -m benchmarks

tables: $(ALL)
	$(BIN)/python -m lab pages
	$(BIN)/python -m benchmarks.report results/bench
	$(BIN)/python -m benchmarks.oracle_ensembles --page

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The stamps depend on what decides an installation, so a second run is quick. All extras include the core; a core
# installation after them takes nothing away.
$(CORE): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e .
	touch $@

$(ALL): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[timm,hf,peft,lightning,test,docs]'
	touch $(CORE) $(DOCS) $@

$(DOCS): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[docs]'
	touch $(CORE) $@

clean:
	rm -rf demo-out site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
