# make demo and make test do all the set-up they need on a fresh machine.
VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.ready
RUNTIME := $(VENV)/.runtime
# The compiler asked for, or any that is here; empty if there is none.
COMPILERS := $(if $(filter default undefined,$(origin CXX)),c++ g++ clang++,$(firstword $(CXX)))
COMPILER  := $(firstword $(foreach name,$(COMPILERS),$(shell command -v $(name))))

.PHONY: help setup demo test test-all test-runtime test-integrations test-gpu lint format bench bench-hosts bench-runtime fuzz-runtime \
        wheels matrix figure drills browser-test docs clean

help:
	@echo "make demo    train the default run: digits, a dense baseline and AC/DC at 90 %"
	@echo "make test    run the tests, those of acdc-runtime too where there is a C++ compiler"
	@echo "make test-all  the tests, the long ones too, hours of fuzzing and kills, and the compatibility matrix"
	@echo "make test-integrations  run the tests of the trainers' adapters, in an environment of their own"
	@echo "make test-gpu  run what needs or uses a GPU, with the python3 (PYTHON=...) whose torch sees one"
	@echo "make lint    ruff and pyright"
	@echo "make docs    build the documentation site into site/, in an environment of its own"
	@echo "make bench   run the CPU benchmarks and write results/"
	@echo "make bench-hosts  measure steps of the trainers with and without acdc and write results/hosts.jsonl"
	@echo "make bench-runtime  measure acdc-runtime beside other engines and write results/runtime.jsonl"
	@echo "make fuzz-runtime   feed it 100,000 damaged models, built with sanitizers"
	@echo "make wheels  build wheels of both distributions into dist/"
	@echo "make matrix  regenerate docs/compatibility.md from the tests"
	@echo "make drills  disturb runs at random moments, 330 times, and damage files thousands of times"
	@echo "make browser-test  look at reports in headless Chromium (needs chromium installed)"
	@echo "make figure  redraw docs/wrn.svg from the kept run"

setup: $(STAMP) $(RUNTIME)

$(STAMP): pyproject.toml constraints.txt
	python3 -m venv $(VENV)
	$(PY) -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $(STAMP)

# acdc-runtime is compiled; without a compiler everything else still works. The stamp says which of both it was.
$(RUNTIME): $(STAMP) runtime/pyproject.toml runtime/CMakeLists.txt $(wildcard runtime/src/* runtime/python/acdc_runtime/*.py)
	@if [ -n "$(COMPILER)" ]; then \
	  echo "building acdc-runtime (about a minute)"; \
	  $(PY) -m pip install --quiet "./runtime[test]" && echo built > $(RUNTIME); \
	else \
	  rm -f $(RUNTIME); \
	  echo "acdc-runtime is not built: there is no C++ compiler. Install one (apt install g++), then: make setup"; \
	fi

demo: $(STAMP)
	$(VENV)/bin/acdc train

test: $(STAMP) test-runtime
	$(PY) -m pytest --numprocesses 2 --dist worksteal

test-runtime: $(RUNTIME)
	@if [ -e $(RUNTIME) ]; then cd runtime && ../$(PY) -m pytest -q; \
	else echo "NOT RUN: the tests of acdc-runtime (no C++ compiler)"; test -z "$$ACDC_REQUIRE_RUNTIME"; fi

test-all: $(STAMP) test-runtime
	@if [ -e $(RUNTIME) ]; then cd runtime && ../$(PY) -m pytest -q --long tests/test_random_graphs.py; fi
	$(PY) -m pytest --numprocesses 2 --dist worksteal --long
	$(MAKE) $(HOSTS)/.ready
	$(PY) -m tests.drills
	$(MAKE) matrix

# An environment of its own: transformers and lightning look for torchvision, which must not be beside them.
HOSTS := .venv-integrations

$(HOSTS)/.ready: pyproject.toml constraints.txt
	python3 -m venv $(HOSTS)
	$(HOSTS)/bin/python -m pip install --quiet --constraint constraints.txt --editable ".[integrations]" pytest pytest-xdist
	@touch $@

test-integrations: $(HOSTS)/.ready
	ACDC_TEST_INTEGRATIONS=1 OMP_NUM_THREADS=1 $(HOSTS)/bin/python -m pytest tests/integrations --numprocesses 2

bench-hosts: $(HOSTS)/.ready
	$(HOSTS)/bin/python -m benchmarks.hosts --threads 1

# The site is built from the sources alone: its environment has neither torch nor acdc.
DOCS := .venv-docs

$(DOCS)/.ready: docs/requirements.txt
	python3 -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --requirement docs/requirements.txt
	@touch $@

docs: $(DOCS)/.ready
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet
	$(DOCS)/bin/python docs/site/check.py site

# No venv: constraints.txt pins torch for development, and a machine with a GPU has its own build of it.
PYTHON := python3
GPU    := tests/conformance tests/train/test_gpu.py tests/train/test_step.py tests/train/test_stage.py \
          tests/train/test_evaluate.py tests/train/test_optim.py

test-gpu:
	PYTHONPATH=src ACDC_TEST_DEVICE=cuda $(PYTHON) -m pytest --long $(GPU)

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/pyright

format: $(STAMP)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

bench: $(STAMP)
	$(PY) -m benchmarks.digits
	$(PY) -m benchmarks.select
	$(PY) -m benchmarks.sharded
	$(PY) -m benchmarks.overhead
	$(PY) -m benchmarks.jpeg
	$(PY) -m benchmarks.theory
	$(PY) -m benchmarks.tables

bench-runtime: $(STAMP) $(RUNTIME)
	$(PY) -m benchmarks.runtime

fuzz-runtime: $(STAMP) $(RUNTIME)
	$(PY) -m pip install --quiet nanobind
	$(PY) runtime/fuzz.py --build --inputs 100000

wheels: $(STAMP)
	$(PY) -m pip wheel --quiet --no-deps --wheel-dir dist . ./runtime

matrix: $(STAMP)
	$(PY) -m pytest tests/conformance/test_optimizers.py --numprocesses 2 --matrix docs/compatibility.md

WRN = results/runs/cifar100-wrn28-10-cifar100_20-90-seed0
CHOSEN = $(addprefix results/runs/cifar100-wrn28-10-,200ep-90-seed1 cifar100_20-90-seed1 dense-seed1)
CHOSEN95 = $(addprefix results/runs/cifar100-wrn28-10-,200ep-95-seed0 cifar100_20-95-seed0 dense-seed0)
LESS = $(addprefix results/runs/cifar100-wrn28-10-,200ep-95-less-dropout-seed0-142of200 200ep-95-seed0 cifar100_20-95-seed0 dense-seed0)
MORE = results/runs/cifar100-wrn28-10-cifar100_20-95-seed0 results/runs/cifar100-wrn28-10-dense-seed0

figure: $(STAMP)
	rm -f docs/wrn*.svg
	$(PY) -m acdc report $(WRN) --figure signature --out docs/wrn.svg
	for name in mask-change inactive; do $(PY) -m acdc report $(WRN) --figure $$name --out docs/wrn-$$name.svg; done
	$(PY) -m acdc report $(WRN) $(MORE) --figure curves --out docs/wrn-curves.svg
	$(PY) -m acdc report $(CHOSEN) --figure curves --out docs/wrn-chosen.svg
	$(PY) -m acdc report $(CHOSEN95) --figure curves --out docs/wrn-chosen-95.svg
	$(PY) -m acdc report $(LESS) --figure curves --out docs/wrn-less-dropout.svg

browser-test: $(STAMP)
	$(PY) -m pytest tests/report/browser

drills: $(STAMP) $(HOSTS)/.ready
	$(PY) -m tests.drills
	$(PY) -m pytest tests/fuzz tests/export --long

clean:
	rm -rf $(VENV) $(HOSTS) $(DOCS) site build dist runtime/build .pytest_cache .ruff_cache
