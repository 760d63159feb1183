"""Forty honest mistakes, and the words without which their one line would not help."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedray.common.errors import UserError
from fedray.config import RunConfig
from fedray.config.run import OF_SWEEPS
from fedray.sweep.sweep import Sweep
from tests.bad_input.case import BASE, RUN
from tests.conftest import Call

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
    ({"base": BASE | {"algorithm": {"fedavg": None, "fedsam": None}}}, "`grid`: `algorithm: [fedavg, fedsam]`"),
    ({"base": BASE | {"grid": {"seed": [0]}}}, "grid: is a key of a sweep's file, next to its `base`"),
    ({"base": BASE | {"training.lr": 0.1}}, "`training: {lr: ...}`"),
    ({"tune": {"seed": [1]}, "final": {"seeds": [2]}}, "tune: unknown name 'seed'; did you mean 'seeds'?"),
    ({"names": {"Slow": "S"}, "base": BASE | OWN}, "'slow'"),
]
IN_A_RUN: list[tuple[dict[str, Any], str]] = [
    (
        {"stop": {"test_accuracy": 90}},
        "stop: is a key of a sweep's file, next to its `base`; one run has none; in Python",
    ),
    ({"clients": 10}, "its keys: total, per_round"),
    ({"clients": {"total": 10, "fraction": 0.1}}, "did you mean 'per_round'?"),
    ({"training": {"lr": "0,1"}}, "training.lr: found '0,1'; write 0.1"),
    ({"training": {"lr": "0.1 0.2"}}, "training.lr: found '0.1 0.2'; several values need commas: [0.1, 0.2]"),
    (
        {"data": DIGITS | {"validation": {"fraction": "12,5 %"}}},
        "data.validation.fraction: found '12,5 %'; write 0.125",
    ),
    (
        {"data": {"name": "synthetic", "test": 200}},
        "data.test: expected a mapping, got 200; did you mean 'test_samples'?",
    ),
    ({"data": DIGITS | {"test": 200}}, "data.test: expected a mapping, got 200; its keys: from, fraction, stratify"),
    ({"data": "CIFAR-10"}, "did you mean 'cifar10'?"),
    ({"runtime": {"gpus": 1}}, "did you mean 'gpus_per_actor'?"),
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("change", "words"), IN_A_SWEEP, ids=lambda value: str(value)[:40])
def test_a_mistake_in_a_sweep_says_what_was_meant(change: dict[str, Any], words: str, call: Call) -> None:
    document = {key: value for key, value in ({"name": "x", "base": BASE} | change).items() if value is not None}
    Path("f.yaml").write_text(yaml.safe_dump(document))
    code, _, err = call("sweep", "f.yaml", "--dry-run")
    assert (code, err.count("\n")) == (2, 1)
    assert words in err


@pytest.mark.parametrize(("change", "words"), IN_A_RUN, ids=lambda value: str(value)[:40])
def test_a_mistake_in_a_run_says_what_was_meant(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        RunConfig.parse(RUN | change)


def test_set_says_where_an_option_belongs(call: Call) -> None:
    Path("f.yaml").write_text(yaml.safe_dump(RUN))
    assert "'algorithm.rho'" in call("run", "f.yaml", "--set", "rho=0.1").err
    Path("s.yaml").write_text(yaml.safe_dump({"name": "x", "base": BASE}))
    assert "'algorithm.rho'" in call("sweep", "s.yaml", "--dry-run", "--set", "rho=0.1").err


def test_keys_of_sweeps_are_known_to_runs() -> None:
    assert {*Sweep.model_fields, "extends"} == OF_SWEEPS
