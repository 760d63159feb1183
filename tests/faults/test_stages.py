"""A tuned sweep whose driver is killed in either stage ends as an undisturbed one."""

import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from fedray.cells.record import Record
from fedray.cells.status import Ending, Status
from fedray.engine.loop import run
from fedray.engine.process.backend import InlineBackend
from fedray.sweep.plan import Plan, make_plan
from fedray.sweep.points import apply_draw
from fedray.sweep.stages import choose, make_final_stage, make_tune_stage
from fedray.sweep.sweep import Sweep
from tests.sweep.running import SWEEP, done, fedray, state_hashes, until, write

TUNED: dict[str, Any] = {
    "name": "tuned",
    "base": SWEEP["base"],
    "cases": [{"algorithm": {"name": "tests.plugins:Slow", "nap": 0.05}}, {"algorithm": "scaffold"}],
    "search": {"training.lr": {"loguniform": [0.01, 1]}},
    "samples": 3,
    "tune": {"seeds": [10]},
    "final": {"seeds": [0, 1]},
}


def inline(planned: Plan) -> tuple[Plan, dict[str, str]]:
    """The plan with the outcomes that one process gives its cells, and hash -> state_sha256."""
    with mock.patch("time.sleep"):
        cells = planned.sheet.cells.values()
        results = {cell.hash: run(planned.problems.get_problem(cell), InlineBackend()) for cell in cells}
    known = {cell: Record(Ending(Status.FINISHED), result.history) for cell, result in results.items()}
    hashes = {cell: result.summary()["state_sha256"] for cell, result in results.items()}
    return replace(planned, sheet=replace(planned.sheet, records=known)), hashes


def killed_at(driver: "subprocess.Popen[str]", words: tuple[str, ...]) -> None:
    """Kill a driver once a line with these words has come."""
    until(driver, *words)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait(timeout=10)
    driver.communicate()


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_killed_in_either_stage_and_called_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL after a cell of the tune stage, then after one of the final stage; 6 and 4 cells."""
    monkeypatch.chdir(tmp_path)
    document = TUNED | {"searcher": "sobol"}
    write(tmp_path, document)
    killed_at(fedray(tmp_path, "sweep", "sweep.yaml"), ("[1/", "finished"))
    killed_at(fedray(tmp_path, "sweep", "sweep.yaml"), ("tuned: chosen", "scaffold"))
    out = done(fedray(tmp_path, "sweep", "sweep.yaml"))
    assert "tuned/tune: 6 cells, 6 finished, 0 diverged, 0 to run" in out
    assert "tuned: 4 finished" in out
    found = state_hashes(tmp_path)
    monkeypatch.chdir(tmp_path.parent)  # a folder without a store
    asked = Sweep.model_validate(document)
    stage, expected = inline(make_plan(make_tune_stage(asked)))
    second = make_plan(make_final_stage(asked, [apply_draw(one.config, one.values) for one in choose(stage)]))
    assert found == expected | inline(second)[1]
