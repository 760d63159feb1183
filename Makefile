# Every target makes the virtual environment first where it is missing or older than its lists.
PYTHON ?= python3
BIN := .venv/bin

FAULTS := tests/faults tests/backend $(addprefix tests/test_,sweep.py checkpoint.py outbox.py claims.py divergence.py)

.PHONY: quickstart test test-slow test-faults lint

quickstart: .venv/ready
	$(BIN)/fedray sweep sweeps/quickstart.yaml
	$(BIN)/python -m analysis.tables quickstart

test: .venv/ready lint
	$(BIN)/python -m pytest

test-slow: .venv/ready
	$(BIN)/python -m pytest -m slow --timeout 3600

test-faults: .venv/ready
	$(BIN)/python -m pytest -m "not slow" --timeout 900 $(FAULTS)

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/mypy

.venv/ready: requirements.txt pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.txt -e '.[dev]'
	touch $@
