"""One round (more where a state only then matters) of each method, derived by hand in the docstring of its case.

`quadratic.py` has the two clients and the notation, the modules `rounds_*` the cases.
"""

import pytest

from fedray.algorithms import ALGORITHMS
from tests.algorithms import (
    rounds_classifiers,
    rounds_fedsol,
    rounds_first,
    rounds_kept,
    rounds_newest,
    rounds_outputs,
    rounds_personal,
    rounds_server,
    rounds_settings,
    rounds_sharpness,
)
from tests.algorithms.quadratic import CASES, check

MODULES = [
    rounds_classifiers,
    rounds_fedsol,
    rounds_kept,
    rounds_first,
    rounds_newest,
    rounds_outputs,
    rounds_personal,
    rounds_server,
    rounds_settings,
    rounds_sharpness,
]
"""Importing one registers its cases."""


@pytest.mark.parametrize("name", sorted(CASES))
def test_round(name: str) -> None:
    check(CASES[name]())


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_method_has_a_derivation(name: str) -> None:
    assert name in {case().algorithm["name"] for case in CASES.values()}
