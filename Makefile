# make demo | test | test-oldest | notebooks | crashes | mutants | check | docs | bench | release-check | install | clean. Each makes .venv and installs what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# "compat" writes a plain path entry: Spark finds data sources by walking the folders of sys.path,
# which an editable install by import hook would hide from it.
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --config-settings editable_mode=compat

.PHONY: install demo test test-oldest notebooks crashes mutants mutation test-rocketmq check docs bench release-check clean

install: $(VENV)/.with-demo

demo: $(VENV)/.with-demo
	@$(BIN)/pyspark-mq demo

# In two processes, each test in the one that is free; each process that needs it starts one Spark session. A test that
# hangs ends the run, which then says where it was.
IN_PARALLEL := --numprocesses=2 --dist=loadgroup --max-worker-restart=0 \
-o faulthandler_timeout=900 -o faulthandler_exit_on_timeout=true
# Python 3.11 parses source to mark columns in a traceback, and two threads that parse at once can fail with a
# SystemError ("AST constructor recursion depth mismatch"); without the columns nothing but pytest parses.
test test-rocketmq: export PYTHONNODEBUGRANGES = 1
test: $(VENV)/.with-test $(VENV)/spark-classes.jsa
	$(BIN)/python -m pytest $(IN_PARALLEL)

# Where there is none, every Spark loads its classes itself, and the tests take longer.
$(VENV)/spark-classes.jsa: $(VENV)/.with-test
	-$(BIN)/python -m tests.spark_classes $@

# The oldest PySpark, under another Python where there is one, in a .venv of its own; tests that start no Spark:
# make test-oldest OTHER=python3.12
OTHER ?= python3.13
OLDEST := $(VENV)-oldest
test-oldest:
	@if $(OTHER) -c 'import ensurepip, venv' 2>/dev/null; then \
	$(MAKE) VENV=$(OLDEST) PYTHON=$(OTHER) $(OLDEST)/.with-oldest && $(OLDEST)/bin/python -m pytest --numprocesses=2 \
	tests/pyspark_mq --ignore=tests/pyspark_mq/cli --ignore=tests/pyspark_mq/test_demo.py; \
	else echo "There is no $(OTHER) here: the oldest PySpark is not tested (OTHER=python3.12 names another Python)"; fi

# All notebooks, about five minutes; `make test` runs the short ones.
notebooks: $(VENV)/.with-test
	NOTEBOOKS=all $(BIN)/python -m pytest tests/examples/test_notebooks.py

# The machine goes down, or a call fails, CUTS times; SIGNALS interrupt, or end, each kind of work:
# make crashes CUTS=100000 SIGNALS=1000
CUTS ?= 10000
SIGNALS ?= 200
crashes: $(VENV)/.with-test
	CUTS=$(CUTS) ERRORS=$$(( $(CUTS) / 10 )) SIGNALS=$(SIGNALS) SINK_SIGNALS=$(SIGNALS) SINK_KILL_ROUNDS=3 $(BIN)/python -m pytest \
	tests/device tests/end_to_end/test_signals.py tests/end_to_end/test_sink_kill.py

# Changes of the store that the tests must notice, each applied to a copy: make mutants
mutants: $(VENV)/.with-test
	$(BIN)/python -m tests.mutants

# Small changes everywhere in one module of the store, against TESTS, its own unless said otherwise:
# make mutation MODULE=append/published_end
MODULE ?= append/published_end
TESTS ?= tests/store/$(dir $(MODULE))test_$(notdir $(MODULE)).py
MUTATION := build/mutation
mutation: $(VENV)/.with-mutation
	rm -rf $(MUTATION) && mkdir -p $(MUTATION)/mutants
	cp -r store pyspark_mq tests conf README.md LICENSE setup.py setup.cfg pyproject.toml $(MUTATION)
	printf '%s\n' 'only_mutate = store/$(MODULE).py' 'pytest_add_cli_args_test_selection =' $(TESTS:%='    %') \
	>> $(MUTATION)/setup.cfg
	cd $(MUTATION) && export PYTHONPATH=$$PWD/mutants PATH="$(CURDIR)/$(BIN):$$PATH" && python -m mutmut run && \
	python -m mutmut results

# LINES=all, or LINES="5.3 4.3": RocketMQ's release lines. Only from make's command line: terminals have a LINES, too.
test-rocketmq: $(VENV)/.with-test
	ROCKETMQ_LINES='$(if $(findstring command,$(origin LINES)),$(LINES))' $(BIN)/python -m pytest -m rocketmq $(IN_PARALLEL)

check: $(VENV)/.with-test
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

# The site, in build/site; a dead link or a page outside of the navigation is an error. `mkdocs serve` shows it.
docs: $(VENV)/.with-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

bench: $(VENV)/.with-bench
	$(BIN)/python -m benchmarks

# The wheel that the sdist builds, installed into an empty environment and used from another directory. `make release-check
# DEMO=1` also runs the demo, with Spark.
RELEASE := $(CURDIR)/build/release
INSTALLED := $(RELEASE)/user/bin
ELSEWHERE := unset PYTHONPATH && cd $(RELEASE)/elsewhere &&
DEMO ?=
release-check: $(BIN)/python
	rm -rf $(RELEASE) dist && mkdir -p $(RELEASE)/elsewhere
	$(BIN)/python -m venv $(RELEASE)/tools && $(BIN)/python -m venv $(RELEASE)/user
	$(RELEASE)/tools/bin/python -m pip install -q --disable-pip-version-check build twine
	$(RELEASE)/tools/bin/python -m build --outdir dist
	$(RELEASE)/tools/bin/python -m twine check --strict dist/*
	$(INSTALLED)/python -m pip install -q --disable-pip-version-check "$$(echo dist/*.whl)$(if $(DEMO),[demo])"
	$(INSTALLED)/python -m pip check
	$(ELSEWHERE) $(INSTALLED)/python -c 'import sys, store, pyspark_mq; pyspark_mq.DefaultSource; \
	assert store.__file__.startswith(sys.prefix) and pyspark_mq.__file__.startswith(sys.prefix), sys.path'
	$(ELSEWHERE) $(INSTALLED)/pyspark-mq --version && $(INSTALLED)/pyspark-mq topic create shop orders && \
	echo hello | $(INSTALLED)/pyspark-mq send shop orders && test "$$($(INSTALLED)/pyspark-mq tail shop orders -n 1)" = hello
	$(if $(DEMO),$(ELSEWHERE) $(INSTALLED)/pyspark-mq demo)
	@echo "dist/ can be released"

clean:
	rm -rf $(VENV) $(OLDEST) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache tests/rocketmq/target

# One stamp for each extra, renewed only when the requirements change.
$(VENV)/.with-%: setup.cfg pyproject.toml | $(BIN)/python
	@echo "Installing pyspark-mq[$*] into $(VENV) (the first time PySpark is a download of about 450 MB)"
	$(PIP_INSTALL) --editable '.[$*]'
	@touch $@

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) was not found: install Python 3.11 or later, \
	or name one with 'make PYTHON=/path/to/python3.12 ...'"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$$($(PYTHON) --version) is too old: \
	install Python 3.11 or later, or name one with 'make PYTHON=/path/to/python3.12 ...'"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments: \
	install its venv module (Debian/Ubuntu: sudo apt-get install python3-venv)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
