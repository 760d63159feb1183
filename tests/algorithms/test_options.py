"""Hyper-parameters that cannot be are refused when the configuration is read, in one line that names key and range."""

from typing import Any

import pytest
from pydantic.fields import FieldInfo

from fedray.algorithms import ALGORITHMS, algorithm
from fedray.common.errors import UserError


def outside(field: FieldInfo) -> list[float]:
    """Numbers a bounded float field must refuse: beyond each bound, on each open one, and what is no number."""
    bad = [float("nan"), float("inf"), float("-inf")]
    for bound in field.metadata:
        for name, step in (("ge", -0.5), ("gt", 0.0), ("le", 0.5), ("lt", 0.0)):
            if hasattr(bound, name):
                bad.append(getattr(bound, name) + step)
    return bad


NUMBERS = [
    (name, option)
    for name, kind in sorted(ALGORITHMS.items())
    for option, field in kind.model_fields.items()
    if field.annotation is float
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
        ({"name": "fedporx"}, "algorithm.name: unknown name 'fedporx'; did you mean 'fedprox'"),
        ({"name": "fedprox", "mo": 1.0}, "algorithm: unknown name 'mo'; did you mean 'mu'"),
        ({"name": "fedprox", "mu": "much"}, "algorithm.mu: found 'much'; input should be a valid number"),
        ({"name": "fedprox", "mu": -1}, "algorithm.mu: found -1; input should be greater than or equal to 0"),
        (
            {"name": "fedtoga", "perturbation": "local"},
            "algorithm.perturbation: found 'local'; input should be 'fusion', 'global' or 'neighbour'",
        ),
        ({"mu": 1.0}, "expected a name or a mapping with `name`"),
        ({"name": "fedray.algorithms:Missing"}, "algorithm.name: 'fedray.algorithms:Missing' cannot be imported"),
        ({"name": "fedray.engine.problem:Problem"}, "is not a subclass of fedray.algorithms.base.Algorithm"),
    ],
)
def test_messages(section: Any, message: str) -> None:
    with pytest.raises(UserError) as raised:
        algorithm(section)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_ones_own_algorithm() -> None:
    """`package.module:Class` keeps its options and goes by that name."""
    own = algorithm({"name": "fedray.algorithms.fedavg:FedProx", "mu": 0.25})
    assert own.options() == {"name": "fedray.algorithms.fedavg:FedProx", "mu": 0.25}
    with pytest.raises(UserError, match=r"^algorithm\.mu: found -0.25"):
        algorithm({"name": "fedray.algorithms.fedavg:FedProx", "mu": -0.25})
