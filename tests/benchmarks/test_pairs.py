"""A benchmark that a dying system does not block, and the GPU's measurements, tiny, without Ray and MLflow."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from benchmarks import pairs as p
from benchmarks.gpu_day.__main__ import PARTS
from benchmarks.gpu_day.hashes import hash_methods, list_hashed, read_hashes
from benchmarks.gpu_day.parts import Part
from benchmarks.pairs import Report
from benchmarks.step import leave_unguarded
from benchmarks.table import PAGE, Run, fill_page, is_met, load_runs, on_gpu
from fedray.algorithms.base import Algorithm, Client
from fedray.common.errors import UserError
from tests import small
from tests.conftest import each


class WritesInPlace(Algorithm):
    """The engine refuses it: x belongs to other clients, too."""

    name = "writes_in_place"

    def begin(self, c: Client) -> None:
        c.theta_0.mul_(1)


PEER = """
import os, subprocess, sys
from benchmarks.systems.protocol import lines, serve
out = lines()
child = subprocess.Popen(["sleep", "1000"])
rounds = 0
def round():
    global rounds
    rounds += 1
    if sys.argv[1] == "dies" and rounds == 4:
        os._exit(7)  # the child keeps the pipe open
    if sys.argv[1] == "waits" and rounds == 4:
        child.kill()
        child.wait()
        import time
        time.sleep(1000)  # for an answer that never comes
try:
    serve(round, [child.pid], out)
finally:
    child.kill()
"""


def test_what_ended_is_named_and_the_others_go_on() -> None:
    """Two warm-ups and two measured rounds: one dies in the fourth while its child holds its output open, one waits for
    a child that has died. Without a limit, the benchmark would wait for both for ever."""
    began = time.monotonic()
    systems = [p.System(kind, [sys.executable, "-c", PEER, kind]) for kind in ("dies", "waits", "lives")]
    children: list[int] = []
    try:
        ready, ended = p.started(systems)
        assert (len(ready), ended) == (3, {})
        children = [pid for system in systems for pid in system.workers]
        seconds, ended = p.interleaved(ready, 3, progress=False)
        assert {name: len(rounds) for name, rounds in seconds.items()} == {"lives": 3}
        assert ended["dies"] == "dies: it, with exit code 7, has ended"
        assert ended["waits"] == f"waits: its process {systems[1].workers[0]} has ended"
        assert time.monotonic() - began < 60
    finally:
        for system in systems:
            system.process.kill()
            system.process.wait()
        for pid in children:
            if os.path.exists(f"/proc/{pid}"):
                os.kill(pid, signal.SIGKILL)


def test_the_page_is_made_from_the_results() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == fill_page(text, load_runs()), "run: python -m benchmarks.table"


@each(
    ("<= 1.05", {"median": 1.05, "low": 1.0, "high": 1.2}, True), ("< 1", 1, False), ("<= 1/20", 0.055, False),
    ("<= the step's + 0.1 = 2.59", 2.58, True), ("step <= 2.1: see step.py", 9, None),
)  # fmt: skip
def test_a_goal_is_met_or_missed_or_none(goal: str, measured: object, met: bool | None) -> None:
    assert is_met({"goal": goal, "measured": measured}) is met


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
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, env=env)


def load(folder: Path) -> list[Run]:
    return [json.loads(file.read_text()) | {"file": file.name} for file in sorted(folder.glob("*.json"))]


def test_what_to_collect_is_told_without_anything_installed(tmp_path: Path) -> None:
    found = run(["pydantic", "yaml", "torch", "numpy"], "--wheels", folder=tmp_path)
    assert found.returncode == 0
    assert found.stdout.startswith("pip download --dest wheels ")


@pytest.mark.slow
def test_hashes_go_on_where_they_ended(tmp_path: Path) -> None:
    """Of a method only what the file lacks is made."""
    lines = tmp_path / "hashes.jsonl"
    others = [(model, precision) for model, precision in list_hashed(True) if model != "lenet"]
    kept = [{"method": "fedavg", "model": m, "precision": p, "error": None} for m, p in others]
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
    Part("cpu", True, time.monotonic(), told, tmp_path).add("late", lambda: {"measured": 3})
    failed, late = "ZeroDivisionError: division by zero", "the part's time was over"
    assert [line["measured"] for line in told.lines] == [f"not measured: {failed}", 2, f"not measured: {late}"]


@pytest.mark.slow
def test_all_parts_run_tiny_without_ray_and_mlflow(tmp_path: Path) -> None:
    for part in PARTS:
        found = run(["ray", "mlflow"], part, str(tmp_path), "--device", "cpu", "--tiny", folder=tmp_path)
        assert found.returncode == 0, found.stderr
    runs = load(tmp_path)
    assert {run["benchmark"] for run in runs} == {f"gpu {part}" for part in PARTS}
    assert {run["machine"]["device"] for run in runs} == {"cpu"}
    figures = {figure["figure"]: figure for run in runs for figure in run["figures"]}
    for what in ("run to run", "four processes / one process", "one by one, nothing recorded / lanes"):
        assert figures[f"methods with other parameters: {what}"]["measured"] == "none"
    hashed, no_kernel = figures["methods hashed, of 2"], {}
    with torch.autocast("cpu", torch.bfloat16):
        try:
            torch.nn.LSTM(8, 8)(torch.zeros(1, 1, 8))
        except RuntimeError as error:  # a CPU without avx512_bf16 or AMX
            no_kernel = {"char_lstm bf16": str(error).partition(".")[0]}
    all_four = ["lenet fp32", "char_lstm fp32", "lenet bf16", "char_lstm bf16"]
    assert hashed["measured"] == ", ".join(f"{kind} 2" for kind in all_four if kind not in no_kernel)
    assert len(hashed["refused"]) == 2 * len(no_kernel)
    for what, why in hashed["refused"].items():
        assert no_kernel[what.partition(" ")[2]] in why
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


def test_a_step_without_the_guard_refuses_nothing() -> None:
    """The benchmark of the guard takes away what the engine calls today, and all of it comes back."""
    with leave_unguarded():
        small.simulation({"name": WritesInPlace}).step()
    with pytest.raises(UserError, match=r"changes c\.theta in place"):
        small.simulation({"name": WritesInPlace}).step()
