# Everything a user of the source tree needs; `make` alone lists the targets.
# The environment in .venv comes from requirements.lock, hash by hash, and is renewed only when the lock or
# pyproject.toml has changed.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH_STAMP := $(VENV)/.installed-bench
GATEWAYS_STAMP := $(VENV)/.installed-gateways
ORDER_API_STAMP := $(VENV)/.installed-order-api
# The oldest supported Python comes first: Debian's own is enough. `make PYTHON=python3.13 ...` takes another.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || echo python3)
# Arguments for pytest and for the benchmarks, for example `make test ARGS="-k config"`.
ARGS ?=
CONFIG ?= config.toml
# Tests run in this many processes, each file in one of them: many wait for a real server more than they work.
TEST_PROCESSES ?= 4
# How long the long suites run; their short forms are part of `make test`.
CRASH_ROUNDS ?= 500
SIM_SEEDS ?= 10000
POWER_ROUNDS ?= 500
# More faults than there are: each is tried.
FAULT_ROUNDS ?= 100000
FLIP_ROUNDS ?= 3000
FUZZ_SECONDS ?= 60
FUZZ_EXAMPLES ?= 50
OVERLOAD_SECONDS ?= 60
IDLE_CONNECTIONS ?= 10000

# Where it is set, each of the hundreds of processes that the tests start would compile all of the program anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install serve demo test check bench crash faults sim fuzz load lock clean

help: ## Show this list.
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do \
		printf '  make %-8s %s\n' "$$name" "$$text"; done

install: $(STAMP) ## Make or renew the environment in .venv from requirements.lock.

$(STAMP): requirements.lock pyproject.toml scripts/make-venv
	@PYTHON="$(PYTHON)" scripts/make-venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary :all: --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

serve: install ## Start the server with config.toml (CONFIG=other.toml takes another file).
	exec $(BIN)/idemactor serve --config $(CONFIG)

demo: install ## How often an order is filled when its sender is unsure: with and without idemactor, in less than a minute.
	@$(BIN)/python examples/tradingview/fills.py

test: $(GATEWAYS_STAMP) $(ORDER_API_STAMP) ## Run the whole short suite.
	$(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --dist loadfile $(ARGS)

$(GATEWAYS_STAMP): $(STAMP) requirements-gateways.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary :all: --require-hashes -r requirements-gateways.lock
	@touch $@

$(ORDER_API_STAMP): $(STAMP) requirements-order-api.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary :all: --require-hashes -r requirements-order-api.lock
	@touch $@

check: install ## Lint, formatting, types, and the direction of the imports.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(BENCH_STAMP) $(ORDER_API_STAMP) ## Measure, beside Redis, PostgreSQL and a Durable Object (QUICK=1; ARGS names sections).
	$(BIN)/python -m bench $(ARGS)

$(BENCH_STAMP): $(STAMP) requirements-bench.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary :all: --require-hashes -r requirements-bench.lock
	@touch $@

crash: $(ORDER_API_STAMP) ## Kill and cut the power of real servers, many rounds (CRASH_ROUNDS, POWER_ROUNDS).
	CRASH_ROUNDS=$(CRASH_ROUNDS) POWER_ROUNDS=$(POWER_ROUNDS) $(BIN)/python -m pytest -rP \
		tests/system tests/storage -k "crash or power" $(ARGS)

faults: install ## Fail every operation of the disk in turn, change bytes, fill disks, take files away (FAULT_ROUNDS, FLIP_ROUNDS).
	FAULT_ROUNDS=$(FAULT_ROUNDS) FLIP_ROUNDS=$(FLIP_ROUNDS) $(BIN)/python -m pytest tests/faults -s $(ARGS)

sim: install ## Run the simulator over many seeds (SIM_SEEDS), and count the seeds that planted mistakes take.
	SIM_SEEDS=$(SIM_SEEDS) $(BIN)/python -m tests.sim

fuzz: install ## Try inputs that nobody would send, each target for FUZZ_SECONDS, and the OpenAPI document (FUZZ_EXAMPLES).
	FUZZ_SECONDS=$(FUZZ_SECONDS) FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(BIN)/python -m pytest -rP \
		tests/fuzz tests/gateway/proxy/test_fuzz.py tests/system/test_openapi.py $(ARGS)

load: install ## Ask ten times more than a server can carry, and keep idle connections (OVERLOAD_SECONDS, IDLE_CONNECTIONS).
	OVERLOAD_SECONDS=$(OVERLOAD_SECONDS) IDLE_CONNECTIONS=$(IDLE_CONNECTIONS) $(BIN)/python -m pytest -rP \
		tests/system/test_overload.py tests/system/test_idle.py $(ARGS)

LOCK := $(BIN)/uv pip compile --quiet --universal --fork-strategy fewest --python-version 3.11 \
	--generate-hashes --no-annotate --no-emit-index-url --custom-compile-command "make lock"

lock: install ## Resolve pyproject.toml into the lock files (ARGS=--upgrade takes newer versions).
	$(LOCK) --extra dev --output-file requirements.lock $(ARGS) pyproject.toml
	$(LOCK) --extra bench --constraint requirements.lock --output-file requirements-bench.lock $(ARGS) pyproject.toml
	$(LOCK) --group order-api --constraint requirements-bench.lock --constraint requirements.lock \
		--output-file requirements-order-api.lock $(ARGS)
	$(LOCK) --group gateways --output-file requirements-gateways.lock $(ARGS)

clean: ## Remove the environment and every cache; data stays.
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
