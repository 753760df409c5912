# `make help` lists what there is.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help quickstart test test-slow lint format bench wheel clean

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
	$(BIN)/albertkit quickstart --out runs/quickstart

test: $(VENV)/.installed-dev ## Install with the dev extra, then run the default test suite
	$(BIN)/python -m pytest

test-slow: $(VENV)/.installed-dev ## The tests that take minutes
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/.installed-dev ## Style, formatting, types, and the order of the rooms
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev ## Put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed-dev ## All benchmark rows beside their peers
	$(BIN)/albertkit bench tokenize
	$(BIN)/albertkit bench data
	$(BIN)/albertkit bench pretrain

wheel: $(VENV)/.installed-dev ## Build the wheel and the source archive into dist/
	$(BIN)/python -m build

clean: ## Remove everything that was made here, the virtual environment too
	rm -rf $(VENV) build dist runs stores .pytest_cache .mypy_cache .ruff_cache
