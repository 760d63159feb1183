"""Cells that a scheduler compares. On a real Ray: tests/sweep/driver/test_schedulers.py."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from fedray.config import RunConfig
from fedray.sweep.file.sweep import Sweep
from fedray.sweep.trials.tune import get_group, make_scheduler
from tests import small

BASE = small.sections(
    clients={"total": 20},
    model="mlp",
    data={"name": "digits", "validation": {"fraction": 0.2}},
    training={"rounds": 8, "local_epochs": 1},
    runtime={},
)


def run(**other: Any) -> RunConfig:
    return RunConfig.parse(BASE | other)


@pytest.mark.parametrize(("name", "first"), [("asha", 1), ("median", 3)])
def test_a_hard_setting_loses_nothing_to_an_easy_one(name: str, first: int) -> None:
    """Accuracies 50 to 54 of one setting, then 10 to 14 of another: in each the first `first` meet too few others.

    asha, factor 2: the better half of those at round 2 continues, so with falling values all but the first end. median:
    three others have to have been there. Among all ten the second setting would have lost all.
    """
    file: dict[str, Any] = {"name": "s", "base": BASE, "search": {"training.lr": {"uniform": [0.1, 1]}}, "samples": 5}
    asked = {"name": name, "grace": 2} | ({"factor": 2} if name == "asha" else {})
    runs = {
        f"{setting}{draw}": run(partition=setting, training=BASE["training"] | {"lr": 0.1 + draw / 10})
        for setting in ("iid", "natural")
        for draw in range(5)
    }
    asked_for = make_scheduler(Sweep.parse(file | {"scheduler": asked}), 8, runs.__getitem__)
    ended = []
    for accuracy, cell in zip([54, 53, 52, 51, 50, 14, 13, 12, 11, 10], runs, strict=True):
        trial = Mock(trial_id=cell, config={"cell": SimpleNamespace(hash=cell)})
        asked_for.on_trial_add(None, trial)  # type: ignore[arg-type]
        for round in (1, 2):
            result = {"round": round, "validation_accuracy": float(accuracy)}
            if asked_for.on_trial_result(None, trial, result) == "STOP":  # type: ignore[arg-type]
                ended.append(cell)
    assert ended == [f"{setting}{draw}" for setting in ("iid", "natural") for draw in range(first, 5)]


def test_draws_of_a_search_are_rivals_if_all_else_is_alike() -> None:
    searched = {"training.lr", "algorithm.mu"}
    prox = {"algorithm": {"name": "fedprox", "mu": 0.1}}
    one = get_group(run(**prox), searched)
    other = run(algorithm={"name": "fedprox", "mu": 1}, training=BASE["training"] | {"lr": 1})
    assert get_group(other, searched) == one
    for other in (
        {"algorithm": "fedavg"},
        prox | {"partition": {"name": "dirichlet", "alpha": 1}},
        prox | {"seed": 1},
        prox | {"training": BASE["training"] | {"local_epochs": 2}},
    ):
        assert get_group(run(**other), searched) != one


def test_a_grid_searches_the_methods_options_and_training() -> None:
    one = get_group(run(algorithm={"name": "fedprox", "mu": 0.1}), set())
    other = run(algorithm={"name": "fedprox", "mu": 1}, training={"rounds": 8, "local_epochs": 5})
    assert get_group(other, set()) == one
    assert get_group(run(algorithm="fedavg"), set()) != one
    assert get_group(run(algorithm={"name": "fedprox", "mu": 0.1}, seed=1), set()) != one
    assert get_group(run(algorithm={"name": "fedprox", "mu": 0.1}, clients={"total": 30}), set()) != one
