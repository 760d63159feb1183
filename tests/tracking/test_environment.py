"""The environment of a run: its tags, where those of cells differ, and the time that all its calls took together."""

import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from fedray.cells.cell import Cell
from fedray.cells.record import Record
from fedray.cells.status import Ending, Status
from fedray.tracking import tracker
from fedray.tracking.environment import describe_mixture, make_environment_tags
from fedray.tracking.outbox import CellRun
from fedray.tracking.store import find_runs
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import FEDAVG, cell, history


@pytest.fixture
def store(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Tracker:
    (tmp_path / "mlflow.db").write_bytes(empty_store.read_bytes())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    return Tracker()


ONE = {"environment.numpy": "2.1.0", "environment.cpu": "Xeon", "fedray.cell": "a"}
OTHER = {"environment.numpy": "2.2.0", "environment.cpu": "Xeon", "environment.gpu": "H100"}


@pytest.mark.parametrize(
    ("tags", "said"),
    [
        ([], ""),
        ([ONE, ONE | {"fedray.cell": "c"}], ""),
        (
            [ONE, OTHER, ONE],
            "the cells come from different environments: numpy 2.1.0 (2 cells), 2.2.0 (1 cell); "
            "gpu not recorded (2 cells), H100 (1 cell)",
        ),
    ],
)
def test_cells_of_different_environments(tags: list[dict[str, str]], said: str) -> None:
    assert describe_mixture(tags) == said


def attempt(cell_: dict[str, Any], status: Status, seconds: float, shown: bool = False) -> None:
    """Call a cell for so long; a RUNNING one is killed."""
    store = Tracker()
    run = CellRun(Cell.from_json(cell_), began=0.0, ended=seconds, shown=shown)
    store.open_cell(run)
    if status is not Status.RUNNING:
        store.close_cell(run, Record(Ending(status), history(50)))


def test_a_resumed_run_adds_up_its_time_and_has_the_environment_of_its_last_call(
    store: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted after 5 s, then killed, then finished in 7 s elsewhere: 12 s, one call without a time.

    A call that only shows the finished run changes nothing.
    """
    one = cell(FEDAVG, 0.5, 0)

    def tags() -> list[str | None]:
        (run,) = find_runs(store.client, store.experiment, [one["hash"]])
        names = ("fedray.seconds", "fedray.untimed", "environment.numpy", "environment.python")
        return [run.data.tags.get(name) for name in names]

    attempt(one, Status.INTERRUPTED, 5)
    assert tags() == ["5.000", None, version("numpy"), platform.python_version()]
    attempt(one, Status.RUNNING, 100)
    monkeypatch.setattr(tracker, "make_environment_tags", lambda: make_environment_tags() | OTHER)
    attempt(one, Status.FINISHED, 7)
    expected = ["12.000", "1", "2.2.0", platform.python_version()]
    assert tags() == expected
    monkeypatch.setattr(tracker, "make_environment_tags", lambda: ONE)
    attempt(one, Status.FINISHED, 3, shown=True)
    assert tags() == expected
