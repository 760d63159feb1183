# Every target makes the virtual environment first where it is missing or older than its lists.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: quickstart test test-slow test-faults lint docs bench

quickstart: .venv/ready
	$(BIN)/fedray sweep sweeps/quickstart.yaml
	$(BIN)/python -m analysis.tables quickstart

test: .venv/ready lint
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-slow: .venv/ready
	$(BIN)/python -m pytest -m slow --timeout 3600

test-faults: .venv/ready
	$(BIN)/python -m pytest -m faults --timeout 900

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The pages of docs/ as a site: open site/index.html.
docs: .venv/ready
	$(BIN)/zensical build

.venv/ready: requirements.txt constraints.txt pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -r requirements.txt -e '.[dev]'
	touch $@

# An hour and a half on two idle cores; PAIRS=5 for a look. Results go to .fedray/bench and into docs/performance.md.
# OLD=DIRECTORY: another checkout, whose start is measured beside this one's. Two benchmarks are called by hand: `states`
# (16 GB of disk) and `quickstart` (asks for another checkout).
PAIRS ?= 20
BENCH := $(BIN)/python -m tests.benchmarks
bench: .venv/ready
	$(BENCH).overhead --workload w2 --peers --bf16 --no-toga --pairs $(PAIRS) --out .fedray/bench/overhead-w2.json
	$(BENCH).overhead --workload w1 --peers --bf16 --pairs $(PAIRS) --out .fedray/bench/overhead-w1.json
	$(BENCH).overhead --workload w0 --peers --pairs $(PAIRS) --out .fedray/bench/overhead-w0.json
	$(BENCH).step --pairs $(PAIRS) --out .fedray/bench/step.json
	$(BENCH).kept --pairs $(PAIRS) --out .fedray/bench/kept.json
	$(BENCH).auto --pairs $(PAIRS) --out .fedray/bench/auto.json
	$(BENCH).precision --pairs $(PAIRS) --out .fedray/bench/precision.json
	$(BENCH).sweep_overhead --out .fedray/bench/sweep-1s.json
	$(BENCH).sweep_overhead --seconds 10 --out .fedray/bench/sweep-10s.json
	$(BENCH).sweep_overhead --cells 1000 --out .fedray/bench/sweep-1000.json
	$(BENCH).sweeping.start --out .fedray/bench/sweep-start.json $(if $(OLD),--old $(OLD))
	$(BENCH).sweeping.per_cell --out .fedray/bench/sweep-per-cell.json
	$(BENCH).sweeping.growth --out .fedray/bench/sweep-growth.json
	$(BENCH).sweeping.foreign --out .fedray/bench/sweep-foreign.json
	$(BENCH).load --pairs $(PAIRS) --out .fedray/bench/load.json
	$(BENCH).scale --out .fedray/bench/scale.json
	$(BENCH).traffic --rounds 10 --out .fedray/bench/traffic.json
	$(BENCH).table .fedray/bench docs/performance.md
