# One door to everything. `make` prints the targets; each brings its own virtual environment and Java.

PYTHON ?= python3
VENV   ?= .venv

BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
PIP     = $(BIN)/python -m pip --quiet --disable-pip-version-check
LOCK   := requirements.lock
LOCKED ?= yes
DIST   ?= dist
ENDS   ?= oldest newest
SPARK   = JAVA_HOME="$$($(BIN)/python -m sbp_spark.java)" && export JAVA_HOME && \
          PYSPARK_PYTHON="$$($(BIN)/python -c 'import sys; print(sys.executable)')" && export PYSPARK_PYTHON &&
CLASSES = classes="$$($(BIN)/python -m tests.support.class_archive)" && eval "$$classes" &&
TESTS   = $(BIN)/python -m pytest -p tests.support.reporting -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=10

WORKERS ?= 2
# Parts of `make test-all`. The first line has markers of tests that `make test` leaves out.
MARKED := browser deployments exhaustive faults fuzz notebooks pages release simulation site
PARTS  := $(MARKED) features versions
LEFT_OUT = not ($(shell echo $(MARKED) | sed 's/ / or /g'))

.DEFAULT_GOAL := help
.PHONY: help install demo serve notebooks check test test-all versions conformance lint types bench bench-full \
        schemas features docs docs-site dist lock clean

help: ## print this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(READY) ## make the virtual environment (VENV=.venv) with all that the targets need

demo: $(READY) ## write and read a stream with Spark, from nothing
	@$(SPARK) $(BIN)/python notebooks/demo.py

serve: $(READY) ## run a placement driver and a range server here
	@$(BIN)/sbp serve

notebooks: $(READY) ## execute every notebook, and keep its outputs
	@$(SPARK) $(BIN)/python notebooks/execute.py notebooks/*.ipynb

check: lint types ## lint, types, and fast unit and property tests: under three minutes
	@$(TESTS) -q -m "$(LEFT_OUT)" --hypothesis-profile=quick tests/tidy tests/property tests/unit $(PYTEST)

test: $(READY) ## every promise once, with real servers and Spark: a quarter of an hour; PYTEST="-k log -x" adds options
	@$(SPARK) $(CLASSES) $(TESTS) -q -m "$(LEFT_OUT)" $(PYTEST)

test-all: $(if $(PART),part-$(PART),$(PARTS:%=part-%)) ## what `make test` leaves out: hours; PART=simulation for one part (the parts: PARTS above)

part-%: $(READY)
	@$(SPARK) $(CLASSES) $(TESTS) -q -m "$*" $(PYTEST)

part-faults: $(READY)
	@$(SPARK) $(CLASSES) ROUNDS="$(or $(ROUNDS),20)" SEED="$(SEED)" $(TESTS) -q -o timeout=0 tests/faults $(PYTEST)

part-fuzz: $(READY)
	@$(TESTS) -q -m fuzz $(PYTEST)
	@$(BIN)/python tests/fuzz/run.py all --runs "$(or $(RUNS),100000)"

part-simulation: $(READY)
	@$(TESTS) -q tests/simulation $(PYTEST)
	@$(BIN)/python -m tests.simulation --seeds "$(or $(SEEDS),0:10000)"

# The pages have ports of their own, so two run at the same time.
part-pages: $(READY)
	@$(SPARK) $(CLASSES) $(TESTS) -q --dist load -m pages $(PYTEST)

part-features: features
part-versions: versions

versions: $(READY) ## test both ends of the versions that pyproject.toml allows; ENDS=oldest, NEWEST_PYTHON=python3.13
	@$(BIN)/python tools/run_versions.py $(ENDS) $(if $(NEWEST_PYTHON),--newest-python $(NEWEST_PYTHON)) $(PYTEST)

conformance: $(READY) ## check a server against the protocol: ENDPOINT=host:port, or one started here
	@SBP_CONFORMANCE_ENDPOINT="$(ENDPOINT)" $(BIN)/python -m pytest tests/conformance $(PYTEST)

lint: $(READY) ## check style, format, import contracts and conf/
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports
	@$(BIN)/hadolint conf/Dockerfile
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.compose-spec conf/compose*.yaml

types: $(READY) ## check the types
	@$(BIN)/mypy

bench: $(READY) ## measure, beside Apache Kafka too, in some minutes; BENCH="--only batch-read" adds options
	@$(SPARK) $(BIN)/python -m benchmarks $(BENCH)
	@$(BIN)/python -m benchmarks.core.replicas
	@$(BIN)/python -m benchmarks.core.encryption
	@$(BIN)/python -m benchmarks.core.clients

bench-full: $(READY) ## measure everything with all shapes, the servers alone too: three quarters of an hour
	@$(SPARK) $(BIN)/python -m benchmarks --full $(BENCH)
	@$(BIN)/python -m benchmarks.core.replicas
	@$(BIN)/python -m benchmarks.core.encryption
	@$(BIN)/python -m benchmarks.core.clients
	@$(BIN)/python -m benchmarks.core.servers
	@$(BIN)/python -m benchmarks.core.rights
	@$(BIN)/python -m benchmarks.core.metrics
	@$(BIN)/python -m benchmarks.core.overload
	@$(BIN)/python -m benchmarks.core.attackers
	@$(BIN)/python -m benchmarks.core.log

schemas: $(READY) ## generate the wire tables from schemas/*.fbs (needs flatc)
	@$(BIN)/python schemas/generate.py

features: $(READY) ## try the features of Spark that docs/reference/spark-features.md lists; some minutes
	@$(SPARK) $(CLASSES) $(BIN)/python tests/try_spark_features.py $(PYTEST)
	@$(BIN)/python docs/generate.py

docs: $(READY) ## generate pages of docs/reference from the code
	@$(BIN)/python docs/generate.py

dist: $(READY) ## build the wheel into DIST=dist and check its metadata
	@$(PIP) wheel --no-deps --no-build-isolation --wheel-dir $(DIST) .
	@$(BIN)/python -c 'import sys; from zipfile import ZipFile; from packaging.metadata import Metadata; \
	    (wheel,) = map(ZipFile, sys.argv[1:]); \
	    (path,) = (each for each in wheel.namelist() if each.endswith(".dist-info/METADATA")); \
	    Metadata.from_email(wheel.read(path))' $(DIST)/*.whl

docs-site: $(READY) ## build the documentation as a site, build/docs/index.html; a warning fails
	@$(BIN)/python -m sphinx --builder html --fresh-env --fail-on-warning --keep-going --quiet docs build/docs

lock: $(READY) ## write requirements.lock; UV=--upgrade for the newest versions that pyproject.toml allows
	@$(BIN)/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --quiet $(UV) \
	    --generate-hashes --no-annotate --custom-compile-command "make lock" \
	    --output-file $(LOCK) >/dev/null

clean: ## remove the virtual environments and every cache
	@rm -rf $(VENV) .cache/versions .cache/spark-*.jsa build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

$(READY): pyproject.toml $(LOCK)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "$(PYTHON) is not Python 3.11 or newer: name one, such as PYTHON=python3.12" >&2; exit 1; }
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV)
ifeq ($(LOCKED),yes)
	@# setuptools first: it builds packages that are released as source only, such as PySpark.
	@sed -n '/^setuptools==/,/[^\\]$$/p' $(LOCK) >$(VENV)/build.lock
	@{ $(PIP) install --require-hashes -r $(VENV)/build.lock && \
	    $(PIP) install --require-hashes --no-build-isolation -r $(LOCK); } || { \
	    echo "Not every file that $(LOCK) names could be had, see above. Does your package index lack" >&2; \
	    echo "it, or serve another file under its name? LOCKED=no installs the newest versions that" >&2; \
	    echo "pyproject.toml allows instead, whatever their hashes: make install LOCKED=no" >&2; exit 1; }
	@$(PIP) install --no-deps --no-build-isolation -e .
else
	@$(PIP) install -e '.[dev]'
endif
	@touch $@
