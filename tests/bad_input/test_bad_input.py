"""Every mistake of a user gives one line with place and cause, exit code 2, and leaves nothing behind; and forty honest
mistakes, with the words without which their one line would not help."""

import logging
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedray.cli import main as cli
from fedray.config.run import OF_SWEEPS
from fedray.sweep.sweep import Sweep
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import FEDAVG, SMALL, cell, history, write
from tests.bad_input import calls, data, settings, sweeps
from tests.bad_input.case import BASE, RUN, Case
from tests.conftest import Call, work_in

pytestmark = pytest.mark.usefixtures("nowhere")
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
    with pytest.MonkeyPatch.context() as patch:
        work_in(folder, patch, empty_store)
        cells = [cell(algorithm, 0.1, seed) for algorithm in (FEDAVG, SMALL) for seed in (0, 1)]
        write(Tracker(), cells, [history(10, 20, 30)] * len(cells))
    return folder


@pytest.fixture
def here(store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, without any of the machine's settings."""
    folder = store.parent / "here"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    work_in(folder, monkeypatch)
    for name in ("HTTP_PROXY", "http_proxy"):
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
    assert (code, files(here)) == (2, before)


@pytest.mark.parametrize("name", CASES)
def test_a_mistake(name: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It is told in one line and leaves nothing."""
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


DIGITS, OWN = {"name": "digits"}, {"algorithm": {"name": "tests.plugins:Slow"}}
IN_A_SWEEP: list[tuple[dict[str, Any], str]] = [
    ({"grid": {"lr": [0.1, 0.2]}}, "'training.lr'"),
    ({"grid": {"rho": [0.1, 0.2]}}, "'algorithm.rho'"),
    ({"grid": {"alpha": [0.1, 0.2]}}, "'partition.alpha' or 'algorithm.alpha'"),
    ({"search": {"training.lr": [0.1, 1]}}, "a distribution is required, such as {choice: [0.1, 1]}"),
    ({"seeds": [0, 1]}, "`grid: {seed: [0, 1]}`"),
    ({"methods": ["fedavg"]}, "`grid: {algorithm: [...]}`"),
    ({"lr": 0.1}, "'training.lr' in `base`, or with a list of values in `grid`"),
    ({"algorithm": "fedavg"}, "'algorithm' in `base`, or with a list of values in `grid`"),
    ({"base": None, "bsae": BASE}, "unknown name 'bsae'; did you mean 'base'?"),
    ({"zzz": 1}, "sweep file: unknown name 'zzz'; valid: base, cases, changes, description, extends, final, "),
    (
        {"base": BASE | {"algorithm": {"fedavg": None, "fedsam": None}}},
        "found algorithm.fedavg, algorithm.fedsam without it;",
    ),
    ({"base": BASE | {"grid": {"seed": [0]}}}, "grid: is a key of a sweep's file, next to its `base`"),
    ({"base": BASE | {"training.lr": 0.1}}, "`training: {lr: ...}`"),
    ({"tune": {"seed": [1]}, "final": {"seeds": [2]}}, "tune: unknown name 'seed'; did you mean 'seeds'?"),
    (
        {"base": BASE | {"seed": 5}, "search": sweeps.LR, "tune": {"seeds": [1]}, "final": {"seeds": [2]}},
        "f.yaml: base.seed: belongs to `tune` and `final`, which say it for each stage",
    ),
    ({"names": {"Slow": "S"}, "base": BASE | OWN}, "'slow'"),
]


@pytest.mark.parametrize(("change", "words"), IN_A_SWEEP, ids=lambda value: str(value)[:40])
def test_a_mistake_in_a_sweep_says_what_was_meant(change: dict[str, Any], words: str, call: Call) -> None:
    document = {key: value for key, value in ({"name": "x", "base": BASE} | change).items() if value is not None}
    Path("f.yaml").write_text(yaml.safe_dump(document))
    code, _, err = call("sweep", "f.yaml", "--dry-run")
    assert (code, err.count("\n")) == (2, 1)
    assert words in err


def test_set_says_where_an_option_belongs_and_runs_know_keys_of_sweeps(call: Call) -> None:
    Path("f.yaml").write_text(yaml.safe_dump(RUN))
    assert "'algorithm.rho'" in call("run", "f.yaml", "--set", "rho=0.1").err
    Path("s.yaml").write_text(yaml.safe_dump({"name": "x", "base": BASE}))
    assert "'algorithm.rho'" in call("sweep", "s.yaml", "--dry-run", "--set", "rho=0.1").err
    assert {*Sweep.model_fields, "extends"} == OF_SWEEPS
