"""Every mistake of a user gives one line with place and cause, exit code 2, and leaves nothing behind."""

import logging
import shutil
import sys
from pathlib import Path

import pytest

from fedray.cli import main as cli
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import FEDAVG, SMALL, cell, history, write
from tests.bad_input import calls, data, settings, sweeps
from tests.bad_input.case import Case

CASES = {
    f"{module.__name__.rpartition('.')[2]}: {name}": case
    for module in (settings, data, sweeps, calls)
    for name, case in module.CASES.items()
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    """A folder `store` with a sweep of two methods and two seeds; the folders of the cases are made next to it."""
    folder = tmp_path_factory.mktemp("cases") / "store"
    folder.mkdir()
    shutil.copy(empty_store, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
        cells = [cell(algorithm, 0.1, seed) for algorithm in (FEDAVG, SMALL) for seed in (0, 1)]
        tracker = Tracker()
        write(tracker, cells, [history(10, 20, 30)] * len(cells))
    return folder


@pytest.fixture
def here(store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, without any of the machine's settings."""
    folder = store.parent / "here"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name in (
        "MLFLOW_TRACKING_URI",
        "MLFLOW_EXPERIMENT_NAME",
        "FEDRAY_STORAGE",
        "RAY_ADDRESS",
        "HTTP_PROXY",
        "http_proxy",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FEDRAY_DATA", str(folder / "data"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    return folder


def files(here: Path) -> set[str]:
    """Return the paths of the files and folders in the folder, without Python\'s own caches."""
    return {str(path.relative_to(here)) for path in here.rglob("*") if "__pycache__" not in path.parts}


def check(case: Case, here: Path, code: object, err: str, before: set[str]) -> None:
    said = [line for line in err.splitlines() if ": decoding once into " not in line]
    assert len(said) == 1, err
    wanted = f"fedray: {case.line}".replace("{here}", str(here))
    assert said[0] == wanted if not wanted.endswith("…") else said[0].startswith(wanted[:-1]), said[0]
    assert code == 2
    assert files(here) == before


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_is_one_line_and_leaves_nothing(
    name: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    for key, value in case.environment.items():
        monkeypatch.setenv(key, value)
    case.prepare(here)
    before = files(here)
    monkeypatch.setattr(sys, "argv", ["fedray", *case.arguments])
    with pytest.raises(SystemExit) as exit_:
        cli.run_command(cli.app)
    check(case, here, exit_.value.code, capsys.readouterr().err, before)


@pytest.fixture(autouse=True)
def _loggers() -> object:
    """The command line's own settings of logging end with the test."""
    yield
    logging.setLogRecordFactory(logging.LogRecord)
