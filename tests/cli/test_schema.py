"""`fedray schema` knows every key of the shipped files, and no misspelt one; shells complete names."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from fedray.cli.main import app
from fedray.common.yaml_files import load_yaml
from fedray.sweep.document import get_sweeps_folder, list_sweeps
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import sheet
from tests.bad_input.case import BASE, RUN
from tests.conftest import Call


def test_schema(call: Call) -> None:
    text = call("schema").out
    shipped = (get_sweeps_folder() / "sweep.schema.json").read_text(encoding="utf-8")
    assert shipped == text, "run: fedray schema > sweeps/sweep.schema.json"
    assert len(text.encode()) <= 100_000
    check = jsonschema.Draft7Validator(json.loads(text))
    for name in list_sweeps():
        found = load_yaml(get_sweeps_folder() / f"{name}.yaml")
        if found.keys() & {"name", "algorithm"}:
            first = (get_sweeps_folder() / f"{name}.yaml").read_text(encoding="utf-8").partition("\n")[0]
            folder = "../" * name.count("/")
            assert first == f"# yaml-language-server: $schema={folder}sweep.schema.json", name
            errors = [f"{name}: {error.json_path}: {error.message[:300]}" for error in check.iter_errors(found)]
            assert errors == []
    mistakes: list[dict[str, Any]] = [
        {"name": "x", "base": BASE | {"trainning": {}}},
        {"name": "x", "base": BASE, "gird": {}},
        {"name": "x", "base": BASE | {"algorithm": "fedavgg"}},
        RUN | {"training": {"rounds": "many"}},
        RUN | {"partition": {"name": "dirichlet"}},
        RUN | {"algorithm": {"name": "fedavg", "rho": 0.1}},
        {"name": "x", "base": BASE | {"algorithm": {"name": "fedsam", "rho": -1}}},
        {"name": "x", "base": BASE | {"evaluation": {"probes": ["drifft"]}}},
        {"name": "x", "base": BASE, "scheduler": {"name": "asha", "gracee": 3}},
        {"name": "x", "base": BASE, "searcher": "optuna"},
        {"name": "x", "base": BASE, "search": {"training.lr": {"logunifrm": [0.1, 1]}}},
        {"name": "x", "base": BASE, "grid": {"seed": []}},
        {"name": "x", "base": BASE, "grid": {"seeds": [0, 1]}},
    ]
    for mistake in mistakes:
        with pytest.raises(jsonschema.ValidationError):
            check.validate(mistake)
    right: list[dict[str, Any]] = [
        RUN,
        RUN | {"partition": "iid"},
        RUN | {"data": {"name": "csv", "path": "x", "label": "y"}},
        {"name": "x", "base": BASE | {"partition": "dirichlet"}, "grid": {"partition.alpha": [0.1, 1]}},
        {"name": "x", "base": BASE, "grid": {"partition": ["iid", {"name": "dirichlet", "alpha": 1}]}},
        {"name": "x", "base": BASE, "grid": {"algorithm.rho": [0.1, 1], "training.adamw.eps": [1e-8], "seed": [0, 1]}},
        {"name": "x", "base": BASE, "grid": {"algorithm": ["fedavg", {"name": "fedsam", "rho": [0.1, 1]}]}},
        {"name": "x", "base": BASE, "grid": {"algorithm": ["fedavg", "fedsam"], "algorithm.rho": [0.1, 1]}},
        {"name": "x", "base": BASE, "grid": {"algorithm": ["fedavg", "mine:Method"], "algorithm.own": [0.1, 1]}},
        {"name": "x", "base": BASE | {"algorithm": "mine:Method"}, "search": {"algorithm.own": {"choice": [1]}}},
        {"name": "x", "extends": "tune", "grid": {"algorithm.own": [1]}},
    ]
    for one in right:
        check.validate(one)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("status swe", {"sweep"}),
        ("tables swe", {"sweep"}),
        ("figures sweep --kind cur", {"curves"}),
        ("tables sweep --metric last10_test", {"last10_test_accuracy"}),
        ("tables fedsam/ta", {"fedsam/table2", "fedsam/table4"}),
        ("tables sweep --paper fedsol/v1", {"fedsol/v1_table1"}),
        ("tables sweep --metric test_loss,last10_test", {"test_loss,last10_test_accuracy"}),
        ("compare sweep --reference s", set()),  # a row, which only the tables know, not the name of a sweep
        ("tables sweep --reference f", set()),
        ("export swe", {"sweep"}),
        ("sweep fedtoga/table", {"fedtoga/table1", "fedtoga/table2", "fedtoga/table3"}),
        ("run own", {"own.yaml"}),
        ("list algo", {"algorithms"}),
        ("list algorithms fedto", {"fedtoga"}),
        ("data check dig", {"digits"}),
        ("data show dig", {"digits"}),
        ("tables sweep --me", {"--metric"}),
        ("figures sweep --", {"--kind", "--band", "--help"}),
    ],
)
def test_shells_complete_names(
    words: str,
    expected: set[str],
    store: Tracker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").touch()
    store.open_sweep(sheet("sweep", []))
    monkeypatch.setenv("_FEDRAY_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"fedray {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    with pytest.raises(SystemExit):
        app(prog_name="fedray")
    found = set(capsys.readouterr().out.split())
    assert expected <= found
    assert expected or not found
