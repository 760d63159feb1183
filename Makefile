# Every target first makes the virtual environment, if it is missing or older than its requirement lists: .venv/ready has what
# fedray needs, .venv/dev what its tests and linters need as well.
PYTHON ?= python3
BIN := .venv/bin
# Python keeps what it has compiled: a process of Ray then takes 2.4 s of processor time for its imports, otherwise 4.9.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: quickstart test pytest test-slow test-faults test-gpu test-lowest lint docs dist bench

quickstart: .venv/ready
	$(BIN)/fedray sweep quickstart
	$(BIN)/fedray tables quickstart

# The linters run beside the tests.
test: .venv/dev
	$(MAKE) --jobs 2 pytest lint

pytest: .venv/dev
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test-slow: .venv/dev
	$(BIN)/python -m pytest -m slow --timeout 3600

test-faults: .venv/dev
	$(BIN)/python -m pytest -m faults --timeout 900

test-gpu: .venv/dev
	$(BIN)/python -m pytest -v -m gpu tests/test_gpu.py

# With the lowest versions that requirements.txt allows.
test-lowest: .venv/dev
	$(BIN)/uv venv --quiet --clear --seed --python $(BIN)/python .venv-lowest
	$(BIN)/uv pip install --quiet --python .venv-lowest --resolution lowest-direct -r requirements.txt $(LOWEST)
	$(BIN)/uv pip install --quiet --python .venv-lowest --no-deps -e .
	.venv-lowest/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(TESTS)
LOWEST := 'griffelib>=2.0' 'hypothesis>=6.100' 'pytest-timeout>=2.3' 'pytest-xdist>=3.8' 'tensorboard>=2.21' 'timm>=1.0.22' 'wandb>=0.31'

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The pages of docs/ as a site: open site/index.html.
docs: .venv/dev
	$(BIN)/python -m docs.generate.api > docs/api.md
	$(BIN)/zensical build

# Wheel and sdist as they are uploaded, checked.
dist: .venv/dev
	rm -rf build dist
	$(BIN)/python -m build --no-isolation --quiet
	$(BIN)/twine check --strict dist/*

# uv installs in a fifth of pip's time; pip takes over where uv cannot be had.
define install
	if $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt uv \
	    && $(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt -r requirements.txt $(1); then touch $@; \
	else echo 'uv could not install; pip takes over, which takes minutes'; \
	    $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -r requirements.txt $(1) && touch $@; fi
endef

.venv/ready: requirements.txt constraints.txt pyproject.toml
	$(PYTHON) -m venv .venv
	$(call install,-e .)

.venv/dev: .venv/ready
	$(call install,-e '.[dev]')

# Half an hour on two idle cores; PAIRS=5 RESULTS=.fedray/bench for a look. Results go to benchmarks/results and from there into
# docs/performance.md.
RESULTS ?= benchmarks/results
PAIRS ?= 20
BENCH := $(BIN)/python -m benchmarks
bench: .venv/dev
	$(BENCH).overhead --workload w2 --peers --bf16 --no-toga --pairs $(PAIRS) --out $(RESULTS)/overhead-w2.json
	$(BENCH).overhead --workload w1 --peers --bf16 --pairs $(PAIRS) --out $(RESULTS)/overhead-w1.json
	$(BENCH).overhead --workload w0 --peers --pairs $(PAIRS) --out $(RESULTS)/overhead-w0.json
	$(BENCH).step --pairs $(PAIRS) --out $(RESULTS)/step.json
	$(BENCH).step --workload w1 --pairs $(PAIRS) --out $(RESULTS)/step-w1.json
	$(BENCH).precision --pairs $(PAIRS) --out $(RESULTS)/precision.json
	$(BENCH).useful_work --out $(RESULTS)/sweep-1s.json
	$(BENCH).scale --out $(RESULTS)/scale.json
	$(BENCH).table
