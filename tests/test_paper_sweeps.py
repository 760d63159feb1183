"""The papers' sweeps: their cells counted against the papers, shared between tables, their smoke versions run."""

from pathlib import Path
from typing import Any

import pytest
import yaml

import fedray
from fedray.errors import UserError
from fedray.sweepfile import Sweep

SWEEPS = Path(__file__).parent.parent / "sweeps"


def written(folder: Path, sweep: dict[str, Any]) -> Path:
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump({"name": "s", "base": {"seed": 3}, **sweep}), encoding="utf-8")
    return path


def test_axes_of_cases_are_multiplied_and_later_ones_win(tmp_path: Path) -> None:
    """2 x 2 cases x 2 seeds, in the file's order: the second axis overrides the first, the grid both."""
    path = written(tmp_path, {"cases": {"a": [{"x": 1, "seed": 5}, {"x": 2}], "b": [{"y": 1}, {"y": 2, "x": 9}]},
                              "grid": {"seed": [0, 1]}})
    assert [(p["x"], p["y"], p["seed"]) for p in Sweep.load(path).points()] == [
        (1, 1, 0), (1, 1, 1), (9, 2, 0), (9, 2, 1), (2, 1, 0), (2, 1, 1), (9, 2, 0), (9, 2, 1)]


def test_smoke_replaces_an_axis_of_cases_and_keeps_the_others(tmp_path: Path) -> None:
    sweep = {"cases": {"a": [{"x": 1}, {"x": 2}], "b": [{"y": 1}, {"y": 2}]}, "smoke": {"cases": {"a": [{"x": 7}]}}}
    path = written(tmp_path, sweep)
    assert len(list(Sweep.load(path).points())) == 4
    assert list(Sweep.load(path, smoke=True).points()) == [{"seed": 3, "x": 7, "y": 1}, {"seed": 3, "x": 7, "y": 2}]
    one = written(tmp_path, {"cases": [{"x": 1}, {"x": 2}], "smoke": {"cases": [{"x": 7}]}})
    assert list(Sweep.load(one, smoke=True).points()) == [{"seed": 3, "x": 7}]


def test_smoke_cannot_add_an_axis_of_cases(tmp_path: Path) -> None:
    path = written(tmp_path, {"cases": {"setting": [{"x": 1}]}, "smoke": {"cases": {"setings": [{"x": 7}]}}})
    with pytest.raises(UserError, match=r"sweep\.yaml: smoke\.cases: .*did you mean 'setting'"):
        Sweep.load(path, smoke=True)


def test_the_last_rounds_are_all_evaluated() -> None:
    """7 rounds, every 3 and the last 2: 3 and 6 for the one, 6 and 7 for the other."""
    run = {"data": "digits", "partition": "iid", "clients": {"total": 4, "per_round": 1},
           "model": {"name": "mlp", "hidden": []}, "algorithm": "fedavg", "runtime": {"backend": "inline"},
           "training": {"rounds": 7, "local_steps": 1}, "evaluation": {"every": 3, "last": 2}}
    assert [row["round"] for row in fedray.simulate(run).history] == [3, 6, 7]
    run["evaluation"] = {"every": 3, "last": 9}
    assert [row["round"] for row in fedray.simulate(run).history] == [1, 2, 3, 4, 5, 6, 7]
