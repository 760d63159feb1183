"""One round of each method, derived by hand in the docstring of its case; more rounds if a state only matters later.

`quadratic.py` has the two clients and the notation, the modules `rounds_*` the cases.
"""

from importlib import import_module
from pathlib import Path

import pytest

from fedray.algorithms import ALGORITHMS
from tests.algorithms.quadratic import CASES, check

for module in Path(__file__).parent.glob("rounds_*.py"):
    import_module(f"tests.algorithms.{module.stem}")  # registers its cases


@pytest.mark.parametrize("name", sorted(CASES))
def test_round(name: str) -> None:
    check(CASES[name]())


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_method_has_a_derivation(name: str) -> None:
    assert name in {case().algorithm["name"] for case in CASES.values()}
