"""Other forms of methods have the numbers of the method by default."""

import pickle

import pytest
import torch

from fedray.algorithms import ALGORITHMS, algorithm
from fedray.common.errors import UserError
from fedray.components.plugins import list_form_options
from fedray.engine.loop import run
from fedray.engine.process.backend import InlineBackend
from fedray.papers.variants import VARIANTS
from tests import small
from tests.conftest import Call

METHODS = [name.removesuffix("@forms") for name in VARIANTS]


def theta(name: str) -> torch.Tensor:
    training = {"rounds": 2, "local_steps": 3, "batch_size": 16, "lr": 0.02}
    return run(small.problem(name, (8, 4), 12, 0.3, training=training), InlineBackend()).theta


@pytest.mark.parametrize("name", METHODS)
def test_with_its_defaults_a_form_is_the_method(name: str) -> None:
    kind = VARIANTS[f"{name}@forms"]
    assert issubclass(kind, ALGORITHMS[name])
    assert list_form_options(name)
    assert "D-" in (kind.__doc__ or "") or "@forms" in (kind.__doc__ or "")
    assert torch.equal(theta(name), theta(f"{name}@forms"))
    again = pickle.loads(pickle.dumps(algorithm(f"{name}@forms")))  # noqa: S301
    assert again == algorithm(f"{name}@forms")
    assert {key: field.default for key, field in kind.model_fields.items()} == {
        **{key: field.default for key, field in ALGORITHMS[name].model_fields.items()},
        **list_form_options(name),
    }


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(UserError, match=r"^algorithm\.name: unknown name 'fedavg@forms'"):
        algorithm("fedavg@forms")
    with pytest.raises(UserError, match=r"^algorithm\.proximal\.name: unknown name 'fedsam@forms'"):
        algorithm({"name": "fedsol", "proximal": "fedsam@forms"})


def test_they_are_listed_in_a_group_of_their_own(call: Call) -> None:
    out = call("list", "algorithms").out
    methods, _, forms = out.partition("Other forms of methods, with the options that they add:\n")
    assert "@forms" not in methods
    assert [line.split()[0] for line in forms.splitlines()] == sorted(VARIANTS)
    page = call("list", "algorithms", "scaffold@forms").out
    assert "D-32" in page
    assert "Karimireddy" in page
