PYTHON ?= python3
VENV ?= .venv

# A file of constraints/: tested, oldest or newest. Each wants an environment of its own: make test VERSIONS=oldest VENV=.venv-oldest
VERSIONS ?= tested
GPUS ?= 1
ROUNDS ?= 10
# Source files whose mutants make mutants derives, and how many of each.
FILES ?=
SAMPLE ?= 40

BIN := $(VENV)/bin
# Bytecode is written when a module is first imported: pip would compile thousands that never are, and without it each of
# the processes that tests start would compile this package anew.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip --disable-pip-version-check install --no-compile
# An absolute path, because pip builds packages in another directory.
INSTALL := PIP_CONSTRAINT=$(CURDIR)/constraints/$(VERSIONS).txt $(PIP)

FAST := $(foreach name,access arguments boxes dependencies files graph orderings overlap plan policies \
	posts proof ragged trace_summary unwritten verify versions,tests/unit/test_$(name).py)
TRITONS := 3.6.0 3.9.0
TRITON_STAMPS := $(TRITONS:%=$(VENV)/triton-%/.installed)
COMPILED := tests/compile/test_kernels.py -k 'copies or ticket'
# These call all that Numba compiles of the simulator, with the counts of traffic, and of the searches for orders.
SIMULATED := $(foreach test,choose.py::test_a_launch_is_predicted_once_for_all_numbers_of_tokens_that_it_serves \
	cache.py::test_worked_example_of_the_module machine.py::test_costs_follow_from_what_accesses_missed \
	steals.py,tests/unit/test_$(test))
SEARCHED := tests/unit/test_cli_order.py::test_it_shows_the_minimum_one_best_order_and_the_named_ones

FORMAT := find src/interlace/csrc -name '*.cuh' -print0 | xargs -0 $(BIN)/clang-format

MARKS := -m "not gpu and not thorough"
# Neighbours share what they compile and compute, so each worker takes a half of the tests as they stand.
PYTEST = $(BIN)/pytest $(MARKS) -n 2 --dist worksteal
TESTS := tests/unit tests/compile tests/browser

# Arrays of tests are small, and each worker has a core: further threads of PyTorch and BLAS would only spin.
test simulated searched collected fast test-triton thorough mutants random: export OMP_NUM_THREADS = 1

.DEFAULT_GOAL := help
.PHONY: help run setup test types simulated searched collected fast test-triton thorough mutants random format docs pages pictures dist records gpu-test clean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(VENV)/.installed-run  ## Run the feed-forward workload, on the GPU if there is one, else on the CPU with a prediction
	$(BIN)/interlace run ffn

setup: $(VENV)/.installed-test $(TRITON_STAMPS)  ## Install all that the tests need; side by side with make -j2 setup

test: $(VENV)/.installed-test  ## Lint, type-check and run the tests that need no GPU
	$(BIN)/ruff check .
	$(FORMAT) --dry-run --Werror
	$(BIN)/lint-imports
	$(MAKE) -j2 simulated searched types collected
	$(PYTEST) $(TESTS)
	TRITON_INTERPRET=1 $(PYTEST) tests/interpret

types: $(VENV)/.installed-test
	$(if $(filter tested,$(VERSIONS)),$(BIN)/mypy,# Types are checked against the tested versions alone: others name theirs differently)

# Both workers would compile the same loops, each for itself and at once; the cache has them for both. None is in two of
# these halves.
simulated: $(VENV)/.installed-test
	$(BIN)/pytest -q $(SIMULATED)

searched: $(VENV)/.installed-test
	$(BIN)/pytest -q $(SEARCHED)

# Nor does each of them compile the modules of tests.
collected: $(VENV)/.installed-test
	$(BIN)/pytest -q $(MARKS) --collect-only $(TESTS) | tail -n 1

fast: $(VENV)/.installed-test  ## Lint, and the tests of graphs, plans, proofs and policies: under a minute
	$(BIN)/ruff check .
	$(FORMAT) --dry-run --Werror
	$(BIN)/pytest -q -n 2 $(FAST)

# Other releases of Triton beside the environment's own, which only compile and lint: no torch asks for them here. Every
# launch template is among them; more shapes compile with the tested release, and all of them in make thorough.
test-triton: $(VENV)/.installed-test $(TRITON_STAMPS)  ## Compile and lint launches of every kind with the oldest and the newest Triton
	$(MAKE) -j2 $(TRITONS:%=with-triton-%)

with-triton-%: $(VENV)/triton-%/.installed
	PYTHONPATH=$(CURDIR)/$(VENV)/triton-$* $(BIN)/pytest -q $(MARKS) $(COMPILED)

thorough: MARKS := -m "thorough and not gpu"
thorough: $(VENV)/.installed-test  ## Run the tests that make test leaves out: more shapes, seeds and models of what others show
	$(PYTEST) $(TESTS)
	TRITON_INTERPRET=1 $(PYTEST) tests/interpret

mutants: $(VENV)/.installed-test  ## Derive mutants of FILES (all that have tests), SAMPLE of each, and report those that no test catches
	$(BIN)/python -m tests.mutation $(FILES) --sample $(SAMPLE) --jobs 2

random: $(VENV)/.installed-test  ## Run every property test on new random examples, ROUNDS times
	for round in $$(seq $(ROUNDS)); do INTERLACE_RANDOM=1 $(BIN)/pytest -q -m hypothesis -n 2 tests/unit || exit 1; done

format: $(VENV)/.installed-test  ## Format the CUDA C++ headers
	$(FORMAT) -i

docs: $(VENV)/.installed-docs  ## Build the pages and the API reference as a site, in build/docs
	$(BIN)/mkdocs build

pages: $(VENV)/.installed-test  ## Fill the tables of the pages from records, and write docs/cli.md from the commands
	$(BIN)/python benchmarks/report.py
	$(BIN)/python docs/commands.py

pictures: $(VENV)/.installed-test  ## Make the pictures of docs/studio.md anew; needs Chromium
	$(BIN)/python docs/pictures.py

dist: $(VENV)/.installed-test  ## Build the sdist and the wheel, in dist
	$(BIN)/python -m hatchling build -d dist -t sdist -t wheel

records: $(VENV)/.installed-test  ## Say which records of benchmarks/results were made with other code than today's
	$(BIN)/python benchmarks/records.py

gpu-test: $(VENV)/.installed-test  ## Run the tests that need a GPU; a skip is a failure
	INTERLACE_REQUIRE_GPU=$(GPUS) $(BIN)/pytest -m gpu tests/gpu

clean:  ## Remove the virtual environment, caches and build outputs
	rm -rf $(VENV) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/pip:
	$(PYTHON) -m venv $(VENV)

# The stamps say what is installed; only a change to what they depend on makes them stale. All installs are
# editable: they share one environment, and a copied one would hide later edits from the other targets.
$(VENV)/.installed-run: pyproject.toml constraints/$(VERSIONS).txt | $(BIN)/pip
	if nvidia-smi >/dev/null 2>&1; then $(INSTALL) -e '.[gpu]'; else $(INSTALL) -e .; fi
	touch $@

$(VENV)/.installed-docs: pyproject.toml constraints/$(VERSIONS).txt | $(BIN)/pip
	$(INSTALL) -e '.[docs]'
	touch $@

$(VENV)/.installed-test: pyproject.toml constraints/$(VERSIONS).txt | $(BIN)/pip
	$(INSTALL) -e '.[test]'
	touch $@

$(TRITON_STAMPS): $(VENV)/triton-%/.installed: | $(BIN)/pip
	$(PIP) -q --no-deps --upgrade --target $(@D) triton==$*
	touch $@
