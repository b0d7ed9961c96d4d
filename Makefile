# One door to everything. `make` prints the targets; each brings its own virtual environment and Java.

PYTHON ?= python3
VENV   ?= .venv

BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
SPARK   = JAVA_HOME="$$($(BIN)/python -m sbp_spark.java)" && export JAVA_HOME && \
          PYSPARK_PYTHON="$$($(BIN)/python -c 'import sys; print(sys.executable)')" && export PYSPARK_PYTHON &&

.DEFAULT_GOAL := help
.PHONY: help install demo serve notebooks test conformance faults lint types bench bench-full schemas docs clean

help: ## print this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(READY) ## make the virtual environment (VENV=.venv) with all that the targets need

demo: $(READY) ## write and read a stream with Spark, from nothing
	@$(SPARK) $(BIN)/python notebooks/demo.py

serve: $(READY) ## run a placement driver and a range server here
	@$(BIN)/sbp serve

notebooks: $(READY) ## execute every notebook
	@$(SPARK) $(BIN)/jupyter execute notebooks/*.ipynb

test: $(READY) ## run the tests; PYTEST="-k log -x" adds options
	@$(SPARK) $(BIN)/python -m pytest $(PYTEST)

conformance: $(READY) ## check a server against the protocol: ENDPOINT=host:port, or one started here
	@SBP_CONFORMANCE_ENDPOINT="$(ENDPOINT)" $(BIN)/python -m pytest tests/conformance $(PYTEST)

faults: $(READY) ## kill servers, fail disks, cut networks: ROUNDS=1000 for long, SEED=n to do it again
	@ROUNDS="$(ROUNDS)" SEED="$(SEED)" $(BIN)/python -m pytest -o timeout=0 tests/faults $(PYTEST)

lint: $(READY) ## check style, format and the import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports

types: $(READY) ## check the types
	@$(BIN)/mypy

bench: $(READY) ## measure, beside Apache Kafka too, in some minutes; BENCH="--only batch-read" adds options
	@$(SPARK) $(BIN)/python -m benchmarks $(BENCH)

bench-full: $(READY) ## measure everything with all shapes, the servers alone too: three quarters of an hour
	@$(SPARK) $(BIN)/python -m benchmarks --full $(BENCH)
	@$(BIN)/python -m benchmarks.core.servers
	@$(BIN)/python -m benchmarks.core.overload
	@$(BIN)/python -m benchmarks.core.log

schemas: $(READY) ## generate the wire tables from schemas/*.fbs (needs flatc)
	@$(BIN)/python schemas/generate.py

docs: $(READY) ## generate docs/ERRORS.md, STATES.md and OPTIONS.md from the code
	@$(BIN)/python docs/generate.py

clean: ## remove the virtual environment and every cache
	@rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

$(READY): pyproject.toml
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@
