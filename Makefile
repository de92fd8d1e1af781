# make setup | demo | again | lora | gallery | test | docs | coverage | test-nightly | test-skypilot | mutants | reliability | bench-PART.NAME | gpu-check | gpu-evidence
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin
BENCH ?= --quick
# The pure part: what it decides is covered branch by branch.
CORE := lightning_core/core/*,lightning_core/planning/*,lightning_core/estimators/*,lightning_core/policies/*,lightning_core/parts/market/spot_policies/*,lightning_core/parts/edge_cloud/placement/*,lightning_core/scheduler/*
PURE := not (gpu or nightly or cluster or stories or faults)
# Only the files that use a marker are collected for it: importing all test modules takes longer than some parts.
# tests/conftest.py fails if a file that is left out has a test of the part.
WITH = $$(grep -rlE 'mark\.$(1)\b' tests --include='test_*.py' --exclude-dir=faults)
# The tests start Python hundreds of times, and two at once: what is compiled is kept, and none takes both cores.
unexport PYTHONDONTWRITEBYTECODE
# A quarter of the random examples by day, four times as many in what runs each night, and what docs/reliability.md records.
test-nightly reliability: export LC_EXAMPLES ?= 4
test-pure: export LC_EXAMPLES ?= 0.25
# Each part says how long it took. `make test` runs two parts beside each other: the live tests wait much, and the pure
# ones compute meanwhile; with a third, Ray takes minutes to start. All together stay below 15 minutes on two cores.
define run_tests
	@began=$$(date +%s); OMP_NUM_THREADS=1 $(RUN)/python -m pytest -q $(2) && echo "$(1): $$(( $$(date +%s) - began )) s" > .seconds-$@ && cat .seconds-$@
endef

.PHONY: setup setup-lora setup-loggers setup-skypilot demo again lora gallery docs test coverage test-pure test-stories test-live test-nightly test-skypilot mutants reliability results lint gpu-check gpu-evidence

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	test -x $(RUN)/python || $(PYTHON) -m venv $(VENV)
	$(RUN)/python -m pip install --quiet --upgrade pip
	$(RUN)/python -m pip install --quiet -c constraints.txt -e '.[launch,view,tensorboard,serve,mcp,arima,docs,dev]'
	touch $@

demo: setup
	$(RUN)/python examples/demo.py $(if $(SEED),--seed $(SEED))

again: setup
	$(RUN)/python examples/again.py $(if $(SEED),--seed $(SEED))

# A small language model comes with it, 100 MB.
setup-lora: setup
	$(RUN)/python -m pip install --quiet -c constraints.txt -e '.[lora]'

# W&B and MLflow, 190 MB with what they need.
setup-loggers: setup
	$(RUN)/python -m pip install --quiet -c constraints.txt -e '.[loggers]'

# SkyPilot, 140 MB with what it needs. It wants older versions of click and uvicorn than are in the environment of the
# tests: they stand in one of its own, on top of that.
SKYPILOT := .venv-skypilot
setup-skypilot: setup
	test -x $(SKYPILOT)/bin/python || $(RUN)/python -m venv $(SKYPILOT)
	$(RUN)/python -c 'import sys; print(*[path for path in sys.path if path.endswith("site-packages")], sep="\n")' \
		> $$($(SKYPILOT)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/below.pth
	$(SKYPILOT)/bin/python -m pip install --quiet -c constraints.txt -e '.[skypilot]'

lora: setup-lora
	$(RUN)/python examples/spot_lora.py

# Runs the examples of docs/examples.md and makes their pictures, docs/gallery/*.png.
gallery: setup
	$(RUN)/python -m examples.gallery

lint: setup
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy || $(RUN)/mypy --num-workers 0 # on a busy machine its workers may not be there in time

# The pages of docs/ as a site in build/site. Strict: a broken link or an unknown name is an error.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(RUN)/mkdocs build --quiet --strict

# What a part prints comes when it has ended, in one piece. A part that fails does not stop those that run, but `make test`.
test: setup
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target test-live test-pure lint docs
	@cat .seconds-test-pure .seconds-test-live

# Two workers: each takes twenty seconds of a core to import and collect all tests.
test-pure: setup
	$(call run_tests,pure,-n 2 --dist worksteal -m 'stories and not nightly or $(PURE)')

# Counting makes the tests half as fast again: apart from them, and not in thousands of random runs or in live ones.
coverage: setup
	OMP_NUM_THREADS=1 $(RUN)/python -m pytest -q -n 2 --dist loadfile -m '$(PURE)' --cov --cov-report=
	$(RUN)/coverage report --include='$(CORE)' --fail-under=95

test-stories: setup
	$(call run_tests,stories,-n 2 -m 'stories and not nightly' $(call WITH,stories))

# Live pools on Ray, and faults. Three at once, for these wait more than they compute, and meet no deadline of seconds.
# Tests that share a pool are run by one of the three (tests/conftest.py).
test-live: setup
	$(call run_tests,live,-n 2 --dist loadgroup --no-loadscope-reorder -m '(cluster or faults) and not (gpu or nightly)' $(call WITH,cluster) tests/faults)

# LC_SOAK_SECONDS: length of the soak test (default 7200); LC_FUZZ_SECONDS: of each fuzz target (default 720);
# LC_EXAMPLES: factor on the numbers of random examples (tests/examples.py; default 4 here, 0.25 in test-pure, 1 elsewhere).
test-nightly: setup-lora setup-loggers coverage test-stories
	$(call run_tests,nightly,-m 'nightly and not gpu')

# The provisioner on the real SkyPilot, whose cloud is made of processes: a quarter of an hour.
test-skypilot: setup-skypilot
	OMP_NUM_THREADS=1 $(SKYPILOT)/bin/python -m pytest -q -m nightly tests/parts/market/test_skypilot_nightly.py

# A module takes minutes, all of them a night. MODULES says which; python -m tests.mutation --help has the OPTIONS, such
# as --most 0 for all mutants of each, --seed for another sample, and --again for those that survived the last time.
MODULES ?= $(shell find $(addprefix lightning_core/,core controllers planning estimators policies scheduler parts/edge_cloud parts/market parts/owners parts/search) -name '*.py')
mutants: setup
	$(RUN)/python -m pip install --quiet -c constraints.txt -e '.[mutants]'
	OMP_NUM_THREADS=1 $(RUN)/python -m tests.mutation $(OPTIONS) $(filter-out %/__init__.py lightning_core/testing/%,$(MODULES))

# docs/results.md and the figures of README.md and docs/faq.md, from docs/results.json.
results: setup
	$(RUN)/python -m benchmarks.results

# Runs every test that holds a promise, the long ones too, and writes docs/reliability.md from what they say.
reliability: setup
	$(RUN)/python -m pytest -q -m 'promise and not gpu' --record=docs/reliability.json
	$(RUN)/python -m tests.faults.table

bench-%: setup
	$(RUN)/python -m benchmarks.$* $(BENCH) --results docs/results.json

gpu-check: setup
	$(RUN)/python -m pytest -q -m gpu

# All that can be said of a GPU in nine minutes, into docs/results.json. Without a network: the Python that is there runs
# it, and what needs a package that is missing is left out. PARTS=overhead,beside says which parts.
gpu-evidence:
	$(or $(wildcard $(RUN)/python),$(PYTHON)) -m benchmarks.gpu.gpu_evidence $(if $(PARTS),--only $(PARTS)) --results docs/results.json
