# `make help` lists what there is.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help quickstart test test-slow faults fuzz lint docs format bench bench-gpu results wheel clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# What is installed, as empty files: pip runs again only when the declared dependencies change.
$(VENV)/.installed-run: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[report]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[dev]'
	@touch $@ $(VENV)/.installed-run

quickstart: $(VENV)/.installed-run ## Install, then train and look at a tiny ALBERT: at most 5 minutes on two cores
	$(BIN)/albertkit quickstart --out quickstart

# Where bytecode may not be written, each of some hundred processes compiles all sources again.
test: $(VENV)/.installed-dev ## Install with the dev extra, then run the default test suite
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist loadfile

test-slow: $(VENV)/.installed-dev ## The tests that take minutes
	$(BIN)/python -m pytest -m slow

faults: $(VENV)/.installed-dev ## Kill, fill, break and disturb the long commands, hundreds of times; needs ALBERTKIT_DATA
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m fault tests

SECONDS ?= 600
fuzz: $(VENV)/.installed-dev ## Damaged files for every reader, for SECONDS (600) in total
	$(INSTALL) -e '.[dev,fuzz]'
	ALBERTKIT_FUZZ_SECONDS=$$(($(SECONDS) * 3 / 4)) $(BIN)/python -m pytest tests/fuzz -rN --tb=short
	$(BIN)/python tests/fuzz/guided.py $$(($(SECONDS) / 4))

lint: $(VENV)/.installed-dev ## Style, formatting, types, the order of the packages, circles of imports, names
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/check_imports.py
	$(BIN)/python tools/check_words.py

docs: $(VENV)/.installed-dev ## The guides and the reference as pages, into build/docs
	$(BIN)/python tools/pages.py

format: $(VENV)/.installed-dev ## Put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# TEXT, TOKENIZER and DATA, where given, replace the built-in text: make results TEXT='wiki/*.gz' TOKENIZER=folder DATA=glue
GIVEN = $(if $(TEXT),--text $(TEXT)) $(if $(TOKENIZER),--tokenizer $(TOKENIZER)) $(if $(DATA),--data $(DATA))

bench: $(VENV)/.installed-dev ## One row beside its peers: make bench ROW=latency ARGS="--shapes 1x16"
	$(INSTALL) -e '.[dev,peers]'
	$(BIN)/python -m benchmarks $(ROW) $(GIVEN) $(ARGS)

bench-gpu: $(VENV)/.installed-dev ## What needs a GPU: its tests, then rows beside transformers into docs/measured/gpu.jsonl
	$(BIN)/albertkit doctor
	$(BIN)/python -m pytest -m gpu
	mkdir -p docs/measured
	$(BIN)/python -m benchmarks pretrain --device cuda --megabytes 4 --steps 4 --rounds 5 --json | tee docs/measured/gpu.jsonl
	$(BIN)/python -m benchmarks encode --device cuda --megabytes 4 --sentences 8192 --rounds 5 --json | tee -a docs/measured/gpu.jsonl
	$(BIN)/python -m benchmarks latency --device cuda --shapes 1x128 8x128 1x384 --rounds 7 --json | tee -a docs/measured/gpu.jsonl

results: $(VENV)/.installed-dev ## Every benchmark beside its peers, an hour on two cores, into docs/measured/
	$(INSTALL) -e '.[dev,peers]'
	$(BIN)/python -m benchmarks all --out docs/measured $(GIVEN)

wheel: $(VENV)/.installed-dev ## Build the wheel and the source archive into dist/
	$(BIN)/python -m build

clean: ## Remove everything that was made here, the virtual environment too
	rm -rf $(VENV) build dist quickstart runs stores .pytest_cache .mypy_cache .ruff_cache
