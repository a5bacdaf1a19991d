# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
TOOLS := $(VENV)/.tools

.PHONY: demo test test-all mutants check format setup clean

demo: $(STAMP)
	$(BIN)/posterity demo

# two processes with a thread each: most tests are too small for two threads
test: $(TOOLS)
	$(BIN)/python -m pytest -m "not everything" -n 2 --dist loadscope

test-all: $(TOOLS)
	$(BIN)/python tests/all.py

mutants: $(TOOLS)
	$(BIN)/python tests/mutants/run.py

check: $(TOOLS)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python tests/rules/advice.py  # length is advice: it fails nothing

format: $(TOOLS)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

setup: $(TOOLS)

# torch first and pinned: a plain range would fetch a CUDA build of several gigabytes on a machine without a GPU.
# The rest at the tested versions (constraints.txt), or at any that pyproject.toml allows where those cannot be had.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/pip install --quiet "torch==2.13.0" || $(BIN)/pip install --quiet "torch>=2.6,<2.14"
	$(BIN)/pip install --quiet -c constraints.txt -e . || $(BIN)/pip install --quiet -e .
	touch $(STAMP)

# Tests need the extras: what Flower, the search, ε and Parquet do is skipped without them.
$(TOOLS): $(STAMP)
	$(BIN)/pip install --quiet -c constraints.txt -e ".[test,check,all]" || $(BIN)/pip install --quiet -e ".[test,check,all]" \
	  || $(BIN)/pip install --quiet -e ".[test,check]"
	touch $(TOOLS)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
