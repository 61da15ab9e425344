# make demo    everything on this machine: broker, worker, simulated cluster, five workflows
# make test    all tests that need no container engine, with a real Kafka
# make lint    ruff and mypy
# make bench   one JSON line a figure
#
# Each does its own set-up, into .venv; Python 3.11 or later is all that has to be there.

PYTHON ?= python3
OUT ?=
VENV := .venv
BIN := $(VENV)/bin
SOURCES := pyproject.toml constraints.txt
INSTALL := $(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt

.PHONY: demo test lint bench clean

demo: $(VENV)/base
	$(BIN)/headrace demo $(if $(OUT),--out $(OUT)) $(WORKFLOWS)

test: $(VENV)/full
	$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/full
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/base
	$(BIN)/python -m benchmarks $(ARGS)

$(BIN)/uv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "headrace needs Python 3.11 or later; name one with PYTHON=…" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv

$(VENV)/base: $(BIN)/uv $(SOURCES)
	$(INSTALL) --editable .
	@touch $@

$(VENV)/full: $(VENV)/base
	$(INSTALL) --editable '.[train,cloudsim,ray,test]'
	@touch $@

clean:
	rm -rf $(VENV) build *.egg-info
