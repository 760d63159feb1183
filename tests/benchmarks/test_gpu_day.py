"""The GPU's measurements, as far as a machine without one can tell: all parts run, tiny, without Ray and MLflow."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu_day.__main__ import MINUTES
from benchmarks.table import Run, is_met, on_gpu

ROOT = Path(__file__).parent.parent.parent
WITHOUT = """
import runpy, sys
for name in {missing}:
    sys.modules[name] = None
sys.argv[1:] = {arguments}
runpy.run_module("benchmarks.gpu_day", run_name="__main__", alter_sys=True)
"""


def run(missing: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Call the command in a process that cannot import some modules."""
    code = WITHOUT.format(missing=missing, arguments=list(arguments))
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=env, check=False)


def load(folder: Path) -> list[Run]:
    return [Run(file.name, json.loads(file.read_text())) for file in sorted(folder.glob("*.json"))]


def test_the_parts_take_25_minutes_and_none_more_than_8() -> None:
    assert sum(MINUTES.values()) == 25
    assert max(MINUTES.values()) <= 8


def test_what_is_not_installed_is_named_in_one_line(tmp_path: Path) -> None:
    found = run(["pydantic", "yaml"], "--device", "cpu", "--tiny", "--out", str(tmp_path))
    assert found.returncode == 2
    assert found.stderr == "not installed: pydantic, pyyaml; pip install pydantic pyyaml\n"
    assert not list(tmp_path.iterdir())


def test_parts_that_have_a_file_are_left(tmp_path: Path) -> None:
    for part in MINUTES:
        (tmp_path / f"gpu-{part}.json").write_text("{}")
    found = run(["ray", "mlflow"], "--device", "cpu", "--tiny", "--out", str(tmp_path))
    assert found.returncode == 0, found.stderr
    assert found.stdout.count(" exists\n") == len(MINUTES)
    assert {file.read_text() for file in tmp_path.iterdir()} == {"{}"}


def test_the_page_says_what_is_not_measured() -> None:
    rows = on_gpu([]).splitlines()[2:]
    assert rows == [f"| {part} | not measured |  |  |  |  |" for part in MINUTES]
    assert is_met({"goal": "< 2.72", "measured": "not measured: the part's time was over"}) is None


@pytest.mark.slow
def test_all_parts_run_tiny_without_ray_and_mlflow(tmp_path: Path) -> None:
    found = run(["ray", "mlflow"], "--device", "cpu", "--tiny", "--out", str(tmp_path))
    assert found.returncode == 0, found.stderr
    runs = load(tmp_path)
    assert {run.content["benchmark"] for run in runs} == {f"gpu {part}" for part in MINUTES}
    assert {run.machine["device"] for run in runs} == {"cpu"}
    figures = {figure["figure"]: figure for run in runs for figure in run.content["figures"]}
    assert figures["methods with other parameters: four processes / one process"]["measured"] == "none"
    assert figures["methods without a hash"]["measured"] == "none"
    assert len(set(figures["hashes of all methods"]["hashes"].values())) == 2
    for name, figure in figures.items():
        if "with MPS" in name:
            assert figure["measured"] == "not measured: no MPS on a CPU"
    for name in ("seconds of a round of FedSAM, lenet, one process", "images/s of 2 processes, without MPS"):
        assert figures[name]["measured"] > 0
    assert "| images/s of 2 processes, without MPS |" in on_gpu(runs)
