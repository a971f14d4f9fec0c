# Hookstation. `make` alone lists what there is to do.

PY ?= python3.11
VENV := .venv
BIN := $(VENV)/bin

# Installs what uv.lock says into .venv with the .venv's own interpreter, whatever is active around.
UV := uv==0.13.8
export UV_PROJECT_ENVIRONMENT := $(VENV)
export UV_PYTHON := $(BIN)/python
export UV_PYTHON_DOWNLOADS := never
export UV_NO_PROGRESS := 1
# uv brings its own certificates; the system's also know a company's proxy.
export UV_SYSTEM_CERTS ?= true
unexport VIRTUAL_ENV
# `--inexact`: what `make test` added is not removed again by `make install`.
SYNC := $(BIN)/uv sync --quiet --frozen --inexact

# What is in tests/browser drives one browser and one broker: it runs by itself, on SQLite.
BROWSER := tests/browser
# What is in tests/pipeline starts one Spark, which needs both cores; what starts one for each of
# many steps is run on SQLite alone.
PIPELINE := tests/pipeline
# What depends on how a server answers: reading, writing and deleting. Reports that are made of the
# same rows in the same way, rules, kills and the command line run on SQLite alone.
PIPELINE_ON_MARIADB := $(addprefix tests/pipeline/test_,source.py archive.py archive_attempts.py \
	usage.py audit.py replay.py erase.py)
# Three at a time: many of them wait for processes, and two would leave a core of two idle then.
PYTEST := $(BIN)/python -m pytest -n 3 --ignore=$(BROWSER) --ignore=$(PIPELINE)
# What fails beside others is run once more by itself: real processes on a busy machine miss a
# moment now and then. What fails again has failed; what passes then is unsteady, and stands in the
# report by its name. Hypothesis repeats the very example that failed.
define tested
$(1) -o cache_dir=.pytest_cache/$@ || \
	{ echo; echo "Once more, each by itself: those that failed."; \
	$(1) -o cache_dir=.pytest_cache/$@ -n 0 -v --last-failed --last-failed-no-failures=none; }
endef
# These never touch the database; once is enough.
NO_DATABASE := $(addprefix --ignore=tests/,test_architecture.py test_docs.py test_readme.py \
	delivery/test_supervisor.py delivery/test_children.py bench) \
	--ignore-glob='*/rules/*' --ignore-glob='*/delivery/test_send*.py'

# How much `make bench` measures: quick or full.
MODE ?= quick
# How long `make soak` goes on, and where: sqlite, mariadb or both.
MINUTES ?= 30
DATABASE ?= both
# Debian's server, unless there is one.
SERVER := PATH="$$PATH:/usr/sbin" command -v mariadbd >/dev/null || \
	tools/apt mariadb-server-core mariadb-client-core

# One test turns the broker's clock with it, and is skipped without.
FAKETIME := ls /usr/lib/*/faketime/libfaketimeMT.so.1 >/dev/null 2>&1 || \
	tools/apt libfaketime || true

.PHONY: help install demo test test-sqlite test-mariadb test-browser test-pipeline screenshots bench bench-pipeline soak lint format clean
.NOTPARALLEL:

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/.runtime ## Install the broker into .venv: no compiler, no root on most machines

demo: install ## Start everything with sample data on http://127.0.0.1:8000
	@$(BIN)/python manage.py demo

test: test-sqlite test-mariadb test-pipeline test-browser ## All tests, on SQLite and on a private MariaDB

test-sqlite: $(VENV)/.test ## All tests on SQLite: no root, no services
	@$(FAKETIME)
	$(call tested,DATABASE_URL= $(PYTEST))

test-mariadb: $(VENV)/.mysql ## The tests that need a database, on a private MariaDB
	@$(SERVER)
	@$(FAKETIME)
	$(call tested,$(BIN)/python tools/mariadb $(PYTEST) $(NO_DATABASE))

test-pipeline: $(VENV)/.pipeline ## The data pipeline on Spark, over SQLite and a private MariaDB
	@$(SERVER)
	$(call tested,DATABASE_URL= $(BIN)/python -m pytest -n 2 --dist loadfile $(PIPELINE))
	$(call tested,$(BIN)/python tools/mariadb $(BIN)/python -m pytest $(PIPELINE_ON_MARIADB) -m "not e2e")

test-browser: $(VENV)/.test ## The console in a real browser; skipped where there is none
	@command -v chromium >/dev/null || tools/apt chromium || true
	$(call tested,DATABASE_URL= $(BIN)/python -m pytest $(BROWSER))

screenshots: $(VENV)/.test ## Every page of console and portal as a picture, into data/screenshots
	@command -v chromium >/dev/null || tools/apt chromium
	DATABASE_URL= $(BIN)/python -m pytest $(BROWSER)/screenshots.py

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
	DJANGO_SETTINGS_MODULE=tests.settings $(BIN)/python manage.py makemigrations --check --dry-run

format: $(VENV)/.lint ## Put the code into the house's form
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean: ## Remove everything that make made; the data of a local broker stays
	rm -rf $(VENV) staticfiles .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# -- Stamps: one for each set of packages that was installed from the present lock -----------------

$(VENV)/.uv: tools/venv
	@tools/venv $(VENV) $(PY) $(UV)
	@touch $@

$(VENV)/.runtime: $(VENV)/.uv pyproject.toml uv.lock
	@$(SYNC)
	@touch $@

$(VENV)/.test: $(VENV)/.runtime
	@$(SYNC) --group test
	@touch $@

# mysqlclient is compiled on Linux, unless uv has kept it from another time. It is tried first, so
# that nobody needs Debian's packages who has the same from elsewhere.
WITH_MYSQL = $(SYNC) --group test --extra mysql && $(BIN)/python -c 'import MySQLdb'
# Debian keeps the headers of its own interpreter in a package; others bring them along.
HEADERS = $(BIN)/python -c "import os, sysconfig as s; \
	os.path.exists(s.get_path('include') + '/Python.h') or \
	print(f'python{s.get_python_version()}-dev')"
$(VENV)/.mysql: $(VENV)/.test
	@($(WITH_MYSQL)) 2>/dev/null || \
		{ tools/apt libmariadb-dev pkg-config gcc $$($(HEADERS)) && $(WITH_MYSQL); }
	@touch $@

$(VENV)/.pipeline: $(VENV)/.mysql
	@$(SYNC) --group test --extra mysql --extra pipeline
	@touch $@

$(VENV)/.lint: $(VENV)/.pipeline
	@$(SYNC) --group test --group lint --extra pipeline
	@touch $@
