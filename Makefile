# Two targets do everything on a fresh Debian or Ubuntu as root: `make quickstart` and `make test`.
.DEFAULT_GOAL := help
SHELL := /bin/bash
VENV := .venv

.PHONY: help quickstart test check bench clean
help:
	@echo "make quickstart   set up, run scenarios/quickstart.yaml on the simulator and on Mininet (root)"
	@echo "make test         set up, run all tests (root)"
	@echo "make check        set up, ruff and mypy"
	@echo "make bench        set up, timed comparisons"

# Installed once; a later make does nothing here unless pyproject.toml has changed.
$(VENV)/.ready: pyproject.toml
	@scripts/setup $(VENV)

quickstart: $(VENV)/.ready
	$(VENV)/bin/netsched run scenarios/quickstart.yaml

# What needs root measures times in the kernel, and so has the machine for itself.
test: $(VENV)/.ready
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/pytest -m "not root" --numprocesses auto --maxprocesses 8 --dist loadfile
	$(VENV)/bin/pytest -m root

check: $(VENV)/.ready
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

bench: $(VENV)/.ready
	$(VENV)/bin/python -m benchmarks

clean:
	rm -rf $(VENV) results build *.egg-info
