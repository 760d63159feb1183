"""Refusals that name the problem: models that cannot serve a method, options; and the names of methods."""

from typing import Any

import pytest
from pydantic.fields import FieldInfo
from torch import Tensor, nn

from fedray.algorithms import ALGORITHMS, algorithm
from fedray.common.errors import UserError
from tests.algorithms.digits import problem
from tests.algorithms.test_pieces import parse


class Headless(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.only = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.only(x.flatten(1))


class TwoLayerHead(nn.Module):
    head = "top"

    def __init__(self) -> None:
        super().__init__()
        self.body, self.top = nn.Linear(64, 16), nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.top(self.body(x.flatten(1)))


HERE = "tests.algorithms.test_refusals"
BARE = {"name": "mlp", "hidden": []}
PROJECTED = {"name": "tests.algorithms.test_local_client:Projected", "own": True}
HEADS = "top.0.weight, top.1.bias, top.1.weight"


@pytest.mark.parametrize(
    ("method", "model", "message"),
    [
        *[
            (name, BARE, f"model.name: found mlp, all of it head; {name} needs a feature layer")
            for name in ("moon", "fedgela", "fedge", "fedrod", "fedbabu", "fedrep", "fedproto", "knnper")
        ],
        ({"name": "fedsol", "proximal": "moon"}, BARE, "moon needs a feature layer"),
        ("moon", f"{HERE}:Headless", "every trained parameter belongs to the head; moon needs a feature layer"),
        *[
            (name, f"{HERE}:TwoLayerHead", f"{HEADS}; {name} needs one linear layer")
            for name in ("fedgela", "fedge", "fedrod", "fedrs", "fedavg-la", "fedgen")
        ],
        *[(name, PROJECTED, f"features() of its own; {name} needs the input") for name in ("fedgela", "fedrod")],
        ("fedgela", {"name": "mlp", "hidden": [9]}, "9 features for 10 classes; fedgela's simplex needs"),
        ("fedrcl", f"{HERE}:Headless", "which names no taps; fedrcl reads inner layers"),
        ("fedrcl", BARE, "model.name: found mlp, which names no taps"),
        ("fedrobust", "char_lstm", "model.name: found char_lstm, whose inputs are tokens"),
    ],
)
def test_a_model_that_cannot_serve_is_refused(method: Any, model: Any, message: str) -> None:
    with pytest.raises(UserError) as raised:
        problem(method, model=model).build_network("cpu")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def outside(field: FieldInfo) -> list[float]:
    """Values a bounded field must refuse: beyond each bound, on each open bound, and values that are not numbers."""
    bad = [float("nan"), float("inf"), float("-inf")]
    past = 1 if field.annotation is int else 0.5
    for bound in field.metadata:
        for name, step in (("ge", -past), ("gt", 0), ("le", past), ("lt", 0)):
            if hasattr(bound, name):
                bad.append(getattr(bound, name) + step)
    return bad


NUMBERS = [
    (name, option)
    for name, kind in sorted(ALGORITHMS.items())
    for option, field in kind.model_fields.items()
    if field.annotation in (int, float)
]


@pytest.mark.parametrize(("name", "option"), NUMBERS)
def test_numbers(name: str, option: str) -> None:
    """Every number has at least one bound, and every bound is kept."""
    bad = outside(ALGORITHMS[name].model_fields[option])
    assert len(bad) > 3
    for value in bad:
        with pytest.raises(UserError, match=rf"^algorithm\.{option}: found ") as raised:
            algorithm({"name": name, option: value})
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"name": "fedsol", "proximal": "fedavg"}, "algorithm.proximal.name: unknown name 'fedavg'; did you mean"),
        ({"name": "fedsol", "proximal": {"name": "kl", "tau": 0}}, "algorithm.proximal.tau: found 0; input should"),
        ({"name": "fedsol", "proximal": {"name": "fednova", "mu": 1}}, "algorithm.proximal.mu: found 1"),
        ({"name": "fedsol", "proximal": 3}, "algorithm.proximal: expected a name or a mapping with `name`, got 3"),
        ({"name": "fedsol", "proximal": "moon", "perturb": "head"}, "algorithm.perturb: found 'head', on which MOON"),
        ({"name": "fedwmsam", "alpha": 1, "rho": 0.1}, "algorithm.alpha: found 1 with rho above 0"),
        ({"name": "fedala", "threshold": 0.1}, "start_epochs: found 10 with a threshold, which needs more than"),
        (
            {"name": "scaffold@forms", "scaling": "samples", "variates": "samples"},
            "only one of the three may weigh the changes of c_i",
        ),
    ],
)
def test_refused_options(section: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as raised:
        algorithm(section)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


LABELS = {
    "fedtoga": "fedtoga",
    "fedtoga-sam+dr": "fedtoga@forms dual_correction=false sam_correction=false",
    "fedtoga-sam+dr+dual": "fedtoga@forms sam_correction=false",
    "fedsol": "fedsol",
    "fedsol-all": "fedsol perturb=all",
    "fedsol-body": "fedsol perturb=body",
    "fedsol-a3": "fedsol strategy=A3",
    "fedsol+feddyn": "fedsol proximal=feddyn",
    "fedsol+moon": "fedsol proximal={name:moon,mu:0.1}",
    "fedavg+kl-base": "fedavg-kl",
    "fedavg+kl-projection": "projection",
    "fedavg+l2-projection": "projection proximal=fedprox",
}
"""The published tables' names."""


@pytest.mark.parametrize("label", LABELS)
def test_labels(label: str) -> None:
    assert algorithm(parse(LABELS[label])).make_label() == label
