"""The GPU's measurements, as far as a machine without one can tell: all parts run, tiny, without Ray and MLflow."""

import gzip
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.gpu_day.__main__ import PARTS
from benchmarks.gpu_day.hashes import hash_methods, list_hashed, read_hashes
from benchmarks.gpu_day.parts import Part
from benchmarks.pairs import Report
from benchmarks.table import Run, is_met, on_gpu

ROOT = Path(__file__).parent.parent.parent
WITHOUT = """
import runpy, sys
for name in {missing}:
    sys.modules[name] = None
sys.argv[1:] = {arguments}
runpy.run_module("benchmarks.gpu_day", run_name="__main__", alter_sys=True)
"""


def run(missing: list[str], *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Call the command in a process that cannot import some modules."""
    code = WITHOUT.format(missing=missing, arguments=list(arguments))
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, env=env, check=False
    )


def load(folder: Path) -> list[Run]:
    return [Run(file.name, json.loads(file.read_text())) for file in sorted(folder.glob("*.json"))]


def test_what_to_collect_is_told_without_anything_installed(tmp_path: Path) -> None:
    found = run(["pydantic", "yaml", "torch", "numpy"], "--wheels", folder=tmp_path)
    assert found.returncode == 0
    assert found.stdout.startswith("pip download --dest wheels ")


@pytest.mark.slow
def test_hashes_go_on_where_they_ended(tmp_path: Path) -> None:
    """Of a method only what the file lacks is made."""
    lines = tmp_path / "hashes.jsonl"
    kept = [
        {"method": "fedavg", "model": m, "precision": p, "error": None} for m, p in list_hashed(True) if m != "lenet"
    ]
    lines.write_text("".join(json.dumps(line) + "\n" for line in kept))
    hash_methods(["fedavg"], "cpu", lines, tiny=True)
    new = read_hashes(lines)[len(kept) :]
    assert [(line["model"], line["precision"]) for line in new] == [("lenet", "fp32"), ("lenet", "bf16")]
    for line in new:
        assert line["error"] is None
        assert line["once"] == line["again"] == line["four"] == line["eager"] is not None


def test_an_exception_costs_one_figure(tmp_path: Path) -> None:
    told = Report("gpu test")
    part = Part("cpu", True, time.monotonic() + 60, told, tmp_path)
    part.add("broken", lambda: {"measured": 1 / 0})
    part.add("whole", lambda: {"measured": 2})
    late = Part("cpu", True, time.monotonic(), told, tmp_path)
    late.add("late", lambda: {"measured": 3})
    assert [line["measured"] for line in told.lines] == [
        "not measured: ZeroDivisionError: division by zero",
        2,
        "not measured: the part's time was over",
    ]


def test_the_page_says_what_is_not_measured() -> None:
    rows = on_gpu([]).splitlines()[2:]
    assert rows == [f"| {part} | not measured |  |  |  |  |" for part in PARTS]
    assert is_met({"goal": "< 2.72", "measured": "not measured: the part's time was over"}) is None


@pytest.mark.slow
def test_all_parts_run_tiny_without_ray_and_mlflow(tmp_path: Path) -> None:
    for part in PARTS:
        found = run(["ray", "mlflow"], part, str(tmp_path), "--device", "cpu", "--tiny", folder=tmp_path)
        assert found.returncode == 0, found.stderr
    runs = load(tmp_path)
    assert {run.content["benchmark"] for run in runs} == {f"gpu {part}" for part in PARTS}
    assert {run.machine["device"] for run in runs} == {"cpu"}
    figures = {figure["figure"]: figure for run in runs for figure in run.content["figures"]}
    for what in ("run to run", "four processes / one process", "one by one, nothing recorded / lanes"):
        assert figures[f"methods with other parameters: {what}"]["measured"] == "none"
    hashed = figures["methods hashed, of 2"]
    assert hashed["measured"] == "lenet fp32 2, char_lstm fp32 2, lenet bf16 2, char_lstm bf16 2"
    assert hashed["refused"] == {}
    for name, figure in figures.items():
        if "with MPS" in name:
            assert figure["measured"] == "not measured: no MPS on a CPU"
        elif name.startswith(("seconds", "minutes", "images")) and not name.endswith(", pfl-research"):
            assert figure["measured"] > 0, name
    assert json.loads(gzip.decompress((tmp_path / "gpu-trace.json.gz").read_bytes()))["traceEvents"]
    assert figures["kernel time / wall time of a round of FedSAM, %"]["longest"]
    lines = [json.loads(line) for line in (tmp_path / "figures.jsonl").read_text().splitlines()]
    assert {line["figure"] for line in lines} <= figures.keys()
    rounds = [figures[f"seconds of a round of FedSAM, {how}"] for how in ("5 lanes", "lanes: 1", "lanes: 10")]
    assert len({figure["theta"] for figure in rounds}) == 1
    assert "| images/s of 2 processes, without MPS |" in on_gpu(runs)
