# Every target works on a clean checkout: it makes .venv, installs what it needs there, and runs.
#
#   make test PYTEST_ARGS="-k ring -x"     make demo DEMO_ARGS=--no-spark
#   make test PARALLEL=     one test after the other
#   make PYTHON=/opt/python3.12/bin/python3 test     use that Python instead of looking for one
#   make UV= test                                    use venv and pip although uv is installed

SHELL := /bin/sh
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.PHONY: help demo test test-long fuzz lint bench lab audit clean ready ready-spark

PYTHON ?=
UV ?= $(shell command -v uv 2>/dev/null)
PYTEST_ARGS ?=
DEMO_ARGS ?=
PARALLEL ?= -n logical --dist loadgroup
BENCH_ARGS ?=
FUZZ_ARGS ?=
LAB_ARGS ?=

# A person may have told Python to write no bytecode, and containers often do. Then each of the hundreds of processes that
# the tests start compiles all that it imports; so here it is written, and `make clean` removes it.
export PYTHONDONTWRITEBYTECODE :=

BIN := .venv/bin
# Installed once for one pyproject.toml in one place: content and path, not times, which a checkout changes.
STATE := $(shell { pwd; cat pyproject.toml requirements.lock; } | cksum | tr ' ' '-')
DEV_STAMP := .venv/.dev-$(STATE)
SPARK_STAMP := .venv/.spark-$(STATE)
CANDIDATES := $(or $(PYTHON),python3.13 python3.12 python3.11 python3 python3.14 python)
NEW_ENOUGH := -c 'import sys; sys.exit(sys.version_info < (3, 11))'
DEV := -e '.[dev]'
DEV_AND_SPARK := -e '.[dev,spark]'

help:
	@echo 'make demo       five daemons on this machine, one killed: stream, publish/subscribe, aggregates, each answer checked'
	@echo 'make test       the test suite (some minutes)'
	@echo 'make test-long  the same, with the long tests and many more property-test examples'
	@echo 'make fuzz       every decoder against damaged encodings (FUZZ_ARGS="--cases 5000000 --seed 1")'
	@echo 'make lint       ruff and mypy'
	@echo 'make bench      the table of measurements'
	@echo 'make lab        the experiments of docs/lab.md in full (LAB_ARGS=--quick: small ones)'
	@echo 'make audit      known vulnerabilities of the packages in requirements.lock'
	@echo 'make clean      remove .venv and everything that is built'

demo: ready-spark
	@$(BIN)/peerd demo $(DEMO_ARGS)

test: ready-spark
	@$(BIN)/pytest $(PARALLEL) $(PYTEST_ARGS)

test-long: ready-spark
	@HYPOTHESIS_PROFILE=deep $(BIN)/pytest --long $(PARALLEL) $(PYTEST_ARGS)

fuzz: ready
	@$(BIN)/python -W ignore -m tests.fuzz $(FUZZ_ARGS)

lint: ready
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench: ready
	@$(BIN)/python -m bench $(BENCH_ARGS)

lab: ready
	@$(BIN)/peerd lab run overlay --out out/lab $(LAB_ARGS)

# Which of the packages in the lock have known vulnerabilities. Needs the network: .ci/run asks first whether it is there.
audit: ready
	@$(call install,'pip-audit>=2.7')
	@$(BIN)/python -m pip_audit --requirement requirements.lock --disable-pip --require-hashes --progress-spinner off

clean:
	rm -rf .venv build dist out *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -rf spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

ready: $(DEV_STAMP)

# pyspark is large and useless without Java, so it is installed only where Java is new enough.
ready-spark: ready
	@if [ -e $(SPARK_STAMP) ]; then exit 0; fi; \
	java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	major=$$("$$java" -version 2>&1 | sed -n 's/.* version "\([0-9][0-9]*\).*/\1/p' | head -n 1); \
	if [ "$${major:-0}" -ge 17 ]; then \
		echo "Java $$major found: installing the extra 'spark' (some 400 MB)"; \
		$(call install,$(DEV_AND_SPARK)) && touch $(SPARK_STAMP); \
	else \
		echo "no Java 17 or newer found: going on without Spark (its part of the demo and its tests are left out)"; \
	fi

$(DEV_STAMP):
	@$(find_python); \
	if ! $(BIN)/python $(NEW_ENOUGH) >/dev/null 2>&1; then \
		echo "creating .venv with $$python"; \
		$(create_venv); \
	fi; \
	echo "installing peerd and its development tools into .venv"; \
	rm -f .venv/.dev-* .venv/.spark-*; \
	$(call try_install,--require-hashes -r requirements.lock) \
	|| echo "requirements.lock cannot be installed here (above: why): going on with the newest versions"; \
	$(call install,$(DEV))
	@# Where Python may not write bytecode, each of the tests' many processes would compile all of it: half of its start.
	@$(BIN)/python -m compileall -q peerd protocols
	@touch $@

# Sets $$python to a Python 3.11 or newer that can make virtual environments, or says what is missing. A name on the
# path is no proof (pyenv puts names there of versions that are not installed), so each candidate is run.
define find_python
python=; without_venv=; \
for candidate in $(CANDIDATES); do \
	"$$candidate" $(NEW_ENOUGH) >/dev/null 2>&1 || continue; \
	if [ -n "$(UV)" ] || "$$candidate" -c 'import venv, ensurepip' >/dev/null 2>&1; then python=$$candidate; break; fi; \
	without_venv=$${without_venv:-$$candidate}; \
done; \
if [ -z "$$python" ] && [ -n "$$without_venv" ]; then \
	echo "peerd: $$without_venv has no module 'venv' or 'ensurepip'." >&2; \
	echo "  On Debian and Ubuntu: apt-get install python3-venv; or install uv." >&2; \
	exit 1; \
elif [ -z "$$python" ] && [ -n "$(UV)" ]; then \
	python=3.12; \
elif [ -z "$$python" ]; then \
	echo "peerd: needs Python 3.11 or newer; tried: $(CANDIDATES)." >&2; \
	echo "  Install one (Debian 12, Ubuntu 24.04: apt-get install python3 python3-venv), install uv," >&2; \
	echo "  or name it: make PYTHON=/path/to/python3" >&2; \
	exit 1; \
fi
endef

define create_venv
if [ -n "$(UV)" ]; then "$(UV)" venv --quiet --clear --python "$$python" .venv || exit 1; \
else "$$python" -m venv --clear .venv || exit 1; fi
endef

# $(call try_install,REQUIREMENTS)
define try_install
{ if [ -n "$(UV)" ]; then "$(UV)" pip install --quiet --python $(BIN)/python $(1); \
  else $(BIN)/python -m pip install --quiet --disable-pip-version-check $(1); fi; }
endef

# $(call install,REQUIREMENTS)
define install
{ $(call try_install,$(1)) \
  || { echo "peerd: installing failed; the lines above say why (no network? then set PIP_INDEX_URL or UV_INDEX_URL)" >&2; exit 1; }; }
endef
