PYTHON ?= python3
VENV ?= .venv

BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip --disable-pip-version-check install

.DEFAULT_GOAL := help
.PHONY: help run test gpu-test clean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(VENV)/.installed-run  ## Run the feed-forward workload, on the GPU if there is one
	$(BIN)/interlace run ffn

test: $(VENV)/.installed-test  ## Lint, type-check and run every test that needs no GPU
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -m "not gpu" -n 2 tests/unit tests/compile
	TRITON_INTERPRET=1 $(BIN)/pytest -m "not gpu" -n 2 tests/interpret

gpu-test: $(VENV)/.installed-test  ## Run the tests that need a GPU; a skip is a failure
	INTERLACE_REQUIRE_GPU=1 $(BIN)/pytest -m gpu tests/gpu

clean:  ## Remove the virtual environment, caches and build outputs
	rm -rf $(VENV) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/pip:
	$(PYTHON) -m venv $(VENV)

# The stamps say what is installed; only a change to pyproject.toml makes them stale. Both installs are
# editable: they share one environment, and a copied one would hide later edits from either target.
$(VENV)/.installed-run: pyproject.toml | $(BIN)/pip
	if nvidia-smi >/dev/null 2>&1; then $(INSTALL) -e '.[gpu]'; else $(INSTALL) -e .; fi
	touch $@

$(VENV)/.installed-test: pyproject.toml | $(BIN)/pip
	$(INSTALL) -e '.[test]'
	touch $@
