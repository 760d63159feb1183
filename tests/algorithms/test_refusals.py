"""What cannot be is refused by name: models that cannot serve a method, options; and what methods are called."""

from typing import Any

import pytest
from torch import Tensor, nn

from fedray.algorithms import ALGORITHMS, algorithm
from fedray.common.errors import UserError
from fedray.config import RunConfig
from tests.algorithms.digits import problem


class Headless(nn.Module):
    """One layer, all of it head, and no taps."""

    def __init__(self) -> None:
        super().__init__()
        self.only = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.only(x.flatten(1))


class Tokens(Headless):
    """Takes tokens, and says so."""

    takes_tokens = True


BARE = {"name": "mlp", "hidden": []}


@pytest.mark.parametrize(
    ("method", "model", "message"),
    [
        ("moon", BARE, "model.name: found mlp, all of it head; moon needs a feature layer"),
        ({"name": "fedsol", "proximal": "moon"}, BARE, "moon needs a feature layer"),
        (
            "moon",
            "tests.algorithms.test_refusals:Headless",
            "model.name: every parameter belongs to the head; moon needs a feature",
        ),
        ("fedrcl", "tests.algorithms.test_refusals:Headless", "which names no taps; fedrcl reads inner layers"),
        ("fedrcl", BARE, "model.name: found mlp, which names no taps"),
        ("fedrcl", "char_lstm", "model.name: found char_lstm, which names no taps"),
        ("fedrobust", "char_lstm", "model.name: found char_lstm, whose inputs are tokens"),
        ("fedrobust", "tests.algorithms.test_refusals:Tokens", "whose inputs are tokens; fedrobust needs real numbers"),
    ],
)
def test_a_model_that_cannot_serve_is_refused(method: Any, model: Any, message: str) -> None:
    with pytest.raises(UserError) as raised:
        problem(method, model=model).network("cpu")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_model_of_ones_own_may_serve() -> None:
    """What is unknown before it is built is not refused: this one has a body."""
    config = {
        "data": "digits",
        "partition": "iid",
        "algorithm": "moon",
        "model": "tests.algorithms.test_refusals:Headless",
    }
    assert RunConfig.parse(config).algorithm.name == "moon"


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"name": "fedntd", "tau": 0}, "algorithm.tau: found 0; input should be greater than 0"),
        ({"name": "moon", "tau": -1}, "algorithm.tau: found -1; input should be greater than 0"),
        ({"name": "fedtoga", "beta": 1.5}, "algorithm.beta: found 1.5; input should be less than or equal to 1"),
        (
            {"name": "fedtoga", "delta_scale": "step"},
            "algorithm.delta_scale: found 'step'; input should be 'mean_step'",
        ),
        ({"name": "fedsol", "perturb": "tail"}, "algorithm.perturb: found 'tail'; input should be 'all', 'body'"),
        ({"name": "fedsol", "strategy": "A7"}, "algorithm.strategy: found 'A7'; input should be 'A0', 'A1'"),
        ({"name": "fedsol", "proximal": "fedavg"}, "algorithm.proximal.name: unknown name 'fedavg'; did you mean"),
        ({"name": "fedsol", "proximal": {"name": "kl", "tau": 0}}, "algorithm.proximal.tau: found 0; input should"),
        ({"name": "fedsol", "proximal": {"name": "fednova", "mu": 1}}, "algorithm.proximal.mu: found 1"),
        ({"name": "fedsol", "proximal": 3}, "algorithm.proximal: expected a name or a mapping with `name`, got 3"),
        ({"name": "fedsol", "proximal": "moon", "perturb": "head"}, "algorithm.perturb: found 'head', on which MOON"),
        (
            {"name": "projection", "proximal": "moon"},
            "algorithm.proximal.name: unknown name 'moon'; valid: fedprox, kl",
        ),
        ({"name": "fedrobust", "affine": "pixel"}, "algorithm.affine: found 'pixel'; input should be 'channel'"),
    ],
)
def test_refused_options(section: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as raised:
        algorithm(section)
    assert message in str(raised.value)


LABELS = {
    "fedtoga": {},
    "fedtoga-sam+dr": {"dual_correction": False, "sam_correction": False},
    "fedtoga-sam+dr+dual": {"sam_correction": False},
    "fedsol": {},
    "fedsol-all": {"perturb": "all"},
    "fedsol-body": {"perturb": "body"},
    "fedsol-a3": {"strategy": "A3"},
    "fedsol+feddyn": {"proximal": "feddyn"},
    "fedsol+moon": {"proximal": {"name": "moon", "mu": 0.1}},
    "fedavg+kl-base": {},
    "fedavg+kl-projection": {},
    "fedavg+l2-projection": {"proximal": "fedprox"},
}
"""The published tables' names."""


@pytest.mark.parametrize("label", LABELS)
def test_labels(label: str) -> None:
    name = {
        "fedavg+kl-base": "fedavg-kl",
        "fedavg+kl-projection": "projection",
        "fedavg+l2-projection": "projection",
    }.get(label, label[:6] if label.startswith("fedsol") else "fedtoga")
    assert algorithm({"name": name, **LABELS[label]}).label() == label


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_options_read_back(name: str) -> None:
    """What a configuration stores is the method again, nested options included; equal ones hash alike."""
    once = algorithm(name)
    assert algorithm(once.options()) == once
    assert hash(algorithm(once.options())) == hash(once)


def test_a_combination_perturbs_everything() -> None:
    """Table 4's setting, unless the configuration says otherwise."""
    assert algorithm({"name": "fedsol", "proximal": "feddyn"}).options()["perturb"] == "all"
    assert algorithm({"name": "fedsol", "proximal": "feddyn", "perturb": "head"}).options()["perturb"] == "head"
    combined = algorithm({"name": "fedsol", "proximal": {"name": "feddyn", "alpha": 0.25}})
    assert algorithm(combined.options()).options() == combined.options()
    assert combined.options()["proximal"]["alpha"] == 0.25
