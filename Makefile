# Hookstation. `make` without a target lists the targets.

PY ?= python3.11
VENV := .venv
BIN := $(VENV)/bin

# Install from uv.lock into .venv with the .venv's interpreter, whatever environment is active.
UV := uv==0.13.8
export UV_PROJECT_ENVIRONMENT := $(VENV)
export UV_PYTHON := $(BIN)/python
export UV_PYTHON_DOWNLOADS := never
export UV_NO_PROGRESS := 1
# Not uv's own certificates: the system's may include a company proxy's.
export UV_SYSTEM_CERTS ?= true
unexport VIRTUAL_ENV
# Keep bytecode: otherwise every process that a test starts compiles the project again.
unexport PYTHONDONTWRITEBYTECODE
export UV_COMPILE_BYTECODE := 1
# `--inexact` keeps `make install` from removing the packages of `make test`.
SYNC := $(BIN)/uv sync --quiet --frozen --inexact

# How many examples each property test tries: few or many.
EXAMPLES ?= few
# Tests run in random order; SEED=N repeats the order and the examples of a run.
PYTEST = $(BIN)/python -m pytest -o cache_dir=.pytest_cache/$@ --hypothesis-profile=$(EXAMPLES) \
	$(SEED:%=--randomly-seed=%)
# Tests of the slow tiers that fail run once more, by themselves.
TIER = $(BIN)/python tools/tier $@ $(PYTEST)
GOLDEN = $(PYTEST) -q tests/interfaces/test_golden.py tests/interfaces/test_access.py
REFERENCE = $(PYTEST) -q tests/unit/clients/test_reference.py
# Regenerate the examples before the OpenAPI document, which contains them.
EXAMPLES_OF_API = $(PYTEST) -q tests/interfaces/api/test_examples.py -k equal_real_responses
# The fast tiers are CPU-bound: one process for each of two cores.
FAST := -n 2
# On MariaDB, `make test` runs the state machines, the query plans, and the tests of what locks rows.
MARIADB_LOCKS := acks claim fanout isolation ordering_keys races receive replay rivals timeline
MARIADB := tests/integration/indexes tests/integration/stateful \
	$(MARIADB_LOCKS:%=tests/integration/delivery/test_%.py) tests/interfaces/test_golden.py
# Tests of console, portal and commands run only on SQLite: tests/integration/indexes opens the
# pages on MariaDB, with every filter. Of the API's tests those run on MariaDB that store, claim or
# list messages, call each operation (test_examples, test_statuses) or send it anything (test_fuzz).
MARIADB_API := batch deliveries examples fuzz idempotency messages ordering_keys publish quotas \
	replays schedules sequencing statuses
MARIADB_ALL := tests/integration tests/interfaces/test_golden.py \
	$(MARIADB_API:%=tests/interfaces/api/test_%.py)
# State machine tests find a faulty rule on either database: many examples on SQLite are enough.
test-mariadb-all: override EXAMPLES := few
# Tests that start processes mostly wait: run three on two cores. A file's tests share a broker.
WAITING = -n 3 --dist loadfile $(LONGEST)
# Two Spark sessions: each mostly uses one core. The fewer tests on MariaDB share one.
SPARK = -n 2 --dist loadfile $(LONGEST)
LONGEST := --durations=10
# These tests need no durable data: the server keeps it in memory.
ON_MARIADB := $(BIN)/python tools/mariadb --memory
# On disk, with production's durability: no kill in these tests may lose a commit.
ON_DURABLE_MARIADB := $(BIN)/python tools/mariadb
ON_SQLITE := DATABASE_URL=
# While one part waits for a process, another one uses the CPU.
PARTS := $(BIN)/python tools/parts

# How much `make bench` measures: quick or full.
MODE ?= quick
# How many minutes `make soak` runs, and on which database: sqlite, mariadb or both.
MINUTES ?= 30
DATABASE ?= both
# Install Debian's MariaDB server, unless one is installed.
SERVER := PATH="$$PATH:/usr/sbin" command -v mariadbd >/dev/null || \
	tools/apt mariadb-server-core mariadb-client-core

# One test changes the broker's clock with libfaketime, and is skipped without it.
FAKETIME := ls /usr/lib/*/faketime/libfaketimeMT.so.1 >/dev/null 2>&1 || \
	tools/apt libfaketime || true
# Tests compare our Celery-compatible module with Celery on Redis; they are skipped without it.
REDIS := command -v redis-server >/dev/null || tools/apt redis-server || true
# The Django client's outbox is also tested on PostgreSQL; skipped without it.
POSTGRESQL := ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || tools/apt postgresql || true
# The shell is Chromium without its windows. It needs chromium-common, on which it does not depend.
CHROMIUM := command -v chromium-headless-shell >/dev/null || tools/apt chromium-headless-shell chromium-common || \
	command -v chromium >/dev/null || tools/apt chromium || true

.PHONY: help install demo dist check test test-fast test-full test-sqlite test-mariadb \
	test-mariadb-all test-databases test-smoke test-e2e test-crash test-clients test-processes-mariadb test-pipeline \
	test-pipeline-mariadb test-browser test-pythons test-sdks test-bullmq debian golden conformance \
	coverage mutation screenshots bench bench-pipeline soak lint format clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-23s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/.runtime ## Install the broker into .venv: no compiler, no root on most machines

demo: install ## Start everything with sample data on http://127.0.0.1:8000
	@$(BIN)/python manage.py demo

dist: $(VENV)/.test ## Build the wheels, the npm packages and the Java client's jars into dist/
	$(BIN)/python -m hatchling build -t wheel
	cd clients/python && $(abspath $(BIN))/python -m hatchling build -t wheel -d $(abspath dist)
	@tools/npm
	@tools/jars

# -- Tests: CONTRIBUTING.md says which to run when -------------------------------------------------

check: $(VENV)/.lint ## What a change must pass: lint and `make test`, side by side
	@$(SERVER) || true
	@$(CHROMIUM)
	@$(PARTS) lint $(GATE)

GATE := test-sqlite test-smoke test-mariadb

test: $(VENV)/.pipeline ## Every fast test, a few of each slow tier: before a commit
	@$(SERVER) || true
	@$(CHROMIUM)
	@$(PARTS) $(GATE)

# First the parts that wait, last those that keep both cores busy to their end.
test-full: $(VENV)/.lint debian ## Every test, and the linters: for releases
	@EXAMPLES=many $(PARTS) -j3 test-clients test-pipeline test-browser test-e2e test-crash test-pipeline-mariadb \
		test-processes-mariadb test-sdks $(if $(BULLMQ),test-bullmq) lint test-sqlite test-mariadb-all

# What the tests need of Debian.
debian:
	@$(SERVER) || true
	@$(FAKETIME)
	@$(REDIS)
	@$(POSTGRESQL)
	@$(CHROMIUM)

test-fast: $(VENV)/.test ## Unit and interfaces on SQLite, while you type
	$(ON_SQLITE) $(PYTEST) $(FAST) -m "not slow" tests/unit tests/interfaces

test-sqlite: $(VENV)/.test ## Unit, integration and interfaces on SQLite: no root, no services
	$(ON_SQLITE) $(PYTEST) $(FAST) tests/unit tests/integration tests/interfaces

test-mariadb: $(VENV)/.mysql ## Tests of statements and locks, on a private MariaDB
	@$(SERVER)
	$(ON_MARIADB) $(PYTEST) $(FAST) $(MARIADB)

test-mariadb-all: $(VENV)/.mysql ## All fast tests that depend on the database, on a private MariaDB
	@$(SERVER)
	$(ON_MARIADB) $(PYTEST) $(FAST) $(MARIADB_ALL) --ignore=tests/integration/transport

# The others' packages are downloaded once, into the user's cache.
test-databases: $(VENV)/.mysql ## Integration tests and a broker on MariaDB 10.11, 11.8 and MySQL 9
	@$(SERVER)
	$(ON_MARIADB) $(PYTEST) $(FAST) $(DATABASES)
	$(BIN)/python tools/servers mariadb-11.8 --memory $(PYTEST) $(FAST) $(DATABASES)
	$(BIN)/python tools/servers mysql --memory $(PYTEST) $(FAST) $(DATABASES)

DATABASES := tests/integration tests/e2e/test_whole_broker.py --ignore=tests/integration/transport

test-smoke: $(VENV)/.pipeline ## A few tests of each slow tier
	@$(CHROMIUM)
	$(ON_SQLITE) $(PYTEST) --durations=0 -m smoke tests/e2e tests/crash tests/pipeline tests/browser

test-e2e: $(VENV)/.test ## Brokers as users start them, over sockets
	@$(FAKETIME)
	$(ON_SQLITE) $(TIER) $(WAITING) tests/e2e --ignore=tests/e2e/clients --ignore=tests/e2e/packages

test-crash: $(VENV)/.test ## Kills at each failpoint; faults of disk, clock, network and database
	@$(FAKETIME)
	$(ON_SQLITE) $(TIER) $(WAITING) tests/crash -m "not repeats"

test-clients: $(VENV)/.test ## The clients of all languages, as packages and on a broker
	@$(FAKETIME)
	@$(REDIS)
	@$(POSTGRESQL)
	$(ON_SQLITE) $(TIER) $(WAITING) tests/e2e/clients tests/e2e/packages

test-processes-mariadb: $(VENV)/.mysql ## Database-dependent tests of processes, on a private MariaDB
	@$(SERVER)
	@$(FAKETIME)
	$(ON_DURABLE_MARIADB) $(TIER) $(WAITING) tests/e2e tests/crash -m "mysql or mariadb"

test-pipeline: $(VENV)/.pipeline ## The data pipeline on Spark, on SQLite
	$(ON_SQLITE) $(TIER) $(SPARK) tests/pipeline

test-pipeline-mariadb: $(VENV)/.pipeline ## Database-dependent tests of the pipeline, on a private MariaDB
	@$(SERVER)
	$(ON_MARIADB) $(TIER) $(LONGEST) tests/pipeline -m "(mysql or mariadb) and not e2e"

test-browser: $(VENV)/.test ## Console and portal in a real browser; skipped where there is none
	@$(CHROMIUM)
	$(ON_SQLITE) $(TIER) $(LONGEST) tests/browser

test-pythons: $(VENV)/.test ## Broker on Python 3.12 to 3.14, client on 3.9 to 3.14, where they are
	@tools/pythons $(BIN)/uv broker 3.12 3.13 3.14
	@tools/pythons $(BIN)/uv client 3.9 3.10 3.12 3.13 3.14

# Writes the tables of docs/clients/sqs-conformance.md, unless a toolchain is missing.
test-sdks: $(VENV)/.test ## SQS clients in four languages, Spring; needs node, go, JDK 17, mvn
	@tools/sdks
	$(ON_SQLITE) $(TIER) tests/sdks --force-regen
	$(ON_SQLITE) $(BIN)/python tools/tier $@-kills $(PYTEST) tests/crash/test_examples.py -m repeats

# Writes docs/clients/bullmq-tests.md; FILES="bulk pause" runs only these files of tests again.
test-bullmq: $(VENV)/.test ## BullMQ's own tests on our backend; BULLMQ=PATH is a checkout of BullMQ
	@tools/bullmq "$(BULLMQ)" $(FILES)

golden: $(VENV)/.mysql ## Update the golden files after an intended change
	@$(SERVER)
	$(ON_SQLITE) $(EXAMPLES_OF_API) --force-regen >/dev/null || $(ON_SQLITE) $(EXAMPLES_OF_API)
	$(ON_SQLITE) $(GOLDEN) --force-regen >/dev/null || $(ON_SQLITE) $(GOLDEN)
	$(ON_SQLITE) $(REFERENCE) --force-regen >/dev/null || $(ON_SQLITE) $(REFERENCE)
	$(ON_MARIADB) $(GOLDEN) -k schema --force-regen >/dev/null || $(ON_MARIADB) $(GOLDEN) -k schema
	@git status --short tests/golden channels_app/api/examples.json docs/clients/python-api.md

conformance: $(VENV)/.test ## Play every scenario with every client; write docs/clients/conformance.md
	@$(FAKETIME)
	$(ON_SQLITE) $(PYTEST) -q tests/e2e/clients/test_conformance.py --force-regen >/dev/null || \
		$(ON_SQLITE) $(PYTEST) -q tests/e2e/clients/test_conformance.py
	@cat docs/clients/conformance.md

coverage: $(VENV)/.test ## Lines and branches that the fast tiers reach, room by room
	$(BIN)/python -m coverage erase
	$(ON_SQLITE) $(BIN)/python -m coverage run -m pytest -o cache_dir=.pytest_cache/$@ \
		tests/unit tests/integration tests/interfaces
	@$(BIN)/python tools/rooms

mutation: $(VENV)/.mutation ## Mutate the core rules; list the changes that no test catches
	$(BIN)/python -m mutmut run
	$(BIN)/python -m mutmut results

screenshots: $(VENV)/.test ## Every page of console and portal as a picture, into data/screenshots
	@$(CHROMIUM)
	$(ON_SQLITE) $(BIN)/python -m pytest tests/browser/screenshots.py

bench: $(VENV)/.mysql ## Measure what the broker reaches (MODE=full: everything, three times)
	@$(SERVER)
	@$(BIN)/python -m bench --$(MODE)

bench-pipeline: $(VENV)/.pipeline ## Measure the data pipeline's jobs (MODE=full: up to 20 million)
	@$(SERVER)
	@$(BIN)/python -m bench.pipeline --$(MODE)

soak: $(VENV)/.mysql ## Load and random kills, then the accounts (MINUTES=30, DATABASE=both)
	@$(SERVER)
	@$(BIN)/python -m bench.soak --minutes $(MINUTES) --database $(DATABASE)

lint: $(VENV)/.lint ## Style, types, import direction; lock and migrations up to date
	$(BIN)/uv lock --check --offline --quiet
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache
	cd clients/python/src && $(abspath $(BIN))/lint-imports --no-logo --no-cache --config ../pyproject.toml
	DJANGO_SETTINGS_MODULE=tests.settings $(BIN)/python manage.py makemigrations --check --dry-run

format: $(VENV)/.lint ## Put the code into the house's form
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean: ## Remove everything that make made; the data of a local broker stays
	rm -rf $(VENV) .tests .sdks .bullmq .clients mutants staticfiles .hypothesis .mypy_cache .pytest_cache .ruff_cache .coverage*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# -- Stamps: one for each set of packages installed from the current lock --------------------------

$(VENV)/.uv: tools/venv
	@echo "Making the virtual environment $(VENV)"
	@tools/venv $(VENV) $(PY) $(UV)
	@touch $@

$(VENV)/.runtime: $(VENV)/.uv pyproject.toml uv.lock
	@echo "Installing the broker's packages"
	@$(SYNC)
	@touch $@

$(VENV)/.test: $(VENV)/.runtime
	@echo "Installing the tests' packages"
	@$(SYNC) --group test
	@touch $@

# On Linux mysqlclient is compiled, unless uv has it in its cache. Try this before installing Debian's
# packages, which are not needed when the headers come from elsewhere.
WITH_MYSQL = $(SYNC) --group test --extra mysql && $(BIN)/python -c 'import MySQLdb'
# Debian has its interpreter's headers in a separate package; other interpreters include them.
HEADERS = $(BIN)/python -c "import os, sysconfig as s; \
	os.path.exists(s.get_path('include') + '/Python.h') or \
	print(f'python{s.get_python_version()}-dev')"
$(VENV)/.mysql: $(VENV)/.test
	@echo "Installing the driver of MySQL and MariaDB"
	@($(WITH_MYSQL)) 2>/dev/null || \
		{ tools/apt libmariadb-dev pkg-config gcc $$($(HEADERS)) && $(WITH_MYSQL); }
	@touch $@

$(VENV)/.pipeline: $(VENV)/.mysql
	@echo "Installing Spark, which is large"
	@$(SYNC) --group test --extra mysql --extra pipeline
	@touch $@

$(VENV)/.mutation: $(VENV)/.test
	@$(SYNC) --group test --group mutation
	@touch $@

$(VENV)/.lint: $(VENV)/.pipeline
	@echo "Installing the linters"
	@$(SYNC) --group test --group lint --extra pipeline
	@touch $@
