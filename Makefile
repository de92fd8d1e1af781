# make setup | demo | test | bench-NAME | gpu-check
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin
SEED ?= 1
BENCH ?= --quick
# The pure part: what it decides is covered branch by branch.
CORE := lightning_core/*.py,lightning_core/estimators/*,lightning_core/policies/*

.PHONY: setup demo test lint gpu-check

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	test -x $(RUN)/python || $(PYTHON) -m venv $(VENV)
	$(RUN)/python -m pip install --quiet --upgrade pip
	$(RUN)/python -m pip install --quiet -c constraints.txt -e '.[launch,view,tensorboard,dev]'
	touch $@

demo: setup
	$(RUN)/python examples/demo.py --seed $(SEED)

lint: setup
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy

# Coverage is counted where the core is tested; counting it in ten thousand stories and in live runs would take minutes.
test: lint
	$(RUN)/python -m pytest -q -m 'not (gpu or nightly or cluster or stories)' --cov --cov-report=
	$(RUN)/coverage report --include='$(CORE)' --fail-under=95
	$(RUN)/python -m pytest -q -m '(cluster or stories) and not (gpu or nightly)'

bench-%: setup
	$(RUN)/python -m benchmarks.$* $(BENCH) --json bench-$*.json

gpu-check: setup
	$(RUN)/python -m pytest -q -m gpu
