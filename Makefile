# Two commands do everything on a fresh machine: `make demo` and `make test`.
# Another interpreter: make test PYTHON=python3.12

PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
ARGS ?=
JOBS ?= $(shell expr $$(nproc 2>/dev/null || echo 2) + 1)

export OMP_NUM_THREADS ?= 1

.PHONY: help demo test lint types unit test-integrations soak bench format check-torch clean

help:
	@echo 'make demo            set up, then train four ways on real images and compare'
	@echo 'make test            set up, then lint, types, all tests and doctests'
	@echo 'make unit ARGS=...   only pytest, with arguments'
	@echo 'make test-integrations   the tests with Lightning, Accelerate and skorch, which it installs'
	@echo 'make soak            an hour of killed workers, cut links, full disks, damaged files (as root)'
	@echo 'make bench           ratios against peers, half an hour; ARGS=--short: only whether all run'
	@echo 'make format          let ruff format the code'
	@echo 'make check-torch TORCH=2.4.1   run the tests against another torch, in its own environment'
	@echo 'make clean           remove the environment and caches'

demo: $(VENV)/.demo
	$(BIN)/codauc demo $(ARGS)

test: lint types unit

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

# Some tests wait for processes more than they compute: one more than there are processors.
unit: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

test-integrations: $(VENV)/.frameworks
	$(BIN)/python -m pytest tests/integrations $(ARGS)

soak: $(VENV)/.dev
	$(BIN)/python -m pytest -m long
	$(BIN)/python experiments/faults.py all $(ARGS)

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks $(ARGS)

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# A file beside the environment says that it is complete, so that a second call installs nothing.
$(VENV)/.demo: pyproject.toml $(CONSTRAINTS) | $(VENV)/.made
	@echo 'Installing codauc and torch into $(VENV) (a minute or two, once) ...'
	$(INSTALL) --constraint $(CONSTRAINTS) --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml $(CONSTRAINTS) | $(VENV)/.made
	@echo 'Installing codauc, torch and the test tools into $(VENV) (a minute or two, once) ...'
	$(INSTALL) --constraint $(CONSTRAINTS) --editable '.[dev]'
	$(INSTALL) --constraint $(CONSTRAINTS) --no-deps torchvision
	@touch $@ $(VENV)/.demo

$(VENV)/.frameworks: $(VENV)/.dev
	@echo 'Installing Lightning, Accelerate and skorch into $(VENV) ...'
	$(INSTALL) --constraint $(CONSTRAINTS) --editable '.[frameworks]'
	@touch $@

# A peer that cannot be installed is tried again next time; its benchmarks are skipped by name.
$(VENV)/.bench: benchmarks/requirements.txt $(VENV)/.dev
	@echo 'Installing the peers of the benchmarks into $(VENV) ...'
	@rm -f $@; missing=; for peer in $$(grep -v '^#' $<); do \
		$(INSTALL) --constraint $(CONSTRAINTS) --no-deps $$peer || missing="$$missing $$peer"; done; \
		test -z "$$missing" && touch $@ || echo "Not installed:$$missing"

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "codauc needs Python 3.11 or later, this is %d.%d: use make PYTHON=python3.11" % sys.version_info[:2])'
	@$(PYTHON) -m venv --clear $(VENV) && $(BIN)/python -m pip --version > /dev/null || \
		{ rm -rf $(VENV); echo 'No environment could be made: $(PYTHON) -m venv failed (Debian: install python3-venv).'; exit 1; }
	@touch $@

# The lower end of the range in pyproject.toml; the pins give way to what that torch needs.
check-torch:
	@test -n '$(TORCH)' || { echo 'use make check-torch TORCH=2.4.1'; exit 2; }
	$(PYTHON) -m venv .venv-torch-$(TORCH)
	.venv-torch-$(TORCH)/bin/python -m pip install --quiet 'torch==$(TORCH)' --editable '.[dev]'
	.venv-torch-$(TORCH)/bin/python -m pytest -n auto $(ARGS)

clean:
	rm -rf $(VENV) .venv-torch-* .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
