"""Other forms of methods: found by name, with the method's numbers at their defaults, and with the options of 0.2."""

import pickle
import typing
from pathlib import Path
from typing import Any

import pytest
import torch

from fedray.algorithms import ALGORITHMS, algorithm
from fedray.common.errors import UserError
from fedray.components.plugins import find_moved, name_forms
from fedray.engine.loop import run
from fedray.engine.process.backend import InlineBackend
from fedray.papers.variants import VARIANTS
from tests import small
from tests.conftest import Call
from tests.sweep.running import write

METHODS = [name.removesuffix("@forms") for name in VARIANTS]


def theta(name: str) -> torch.Tensor:
    training = {"rounds": 2, "local_steps": 3, "batch_size": 16, "lr": 0.02}
    return run(small.problem(name, (8, 4), 12, 0.3, training=training), InlineBackend()).theta


@pytest.mark.parametrize("name", METHODS)
def test_with_its_defaults_a_form_is_the_method(name: str) -> None:
    kind = VARIANTS[f"{name}@forms"]
    assert issubclass(kind, ALGORITHMS[name])
    assert find_moved(name)
    assert "D-" in (kind.__doc__ or "") or "@forms" in (kind.__doc__ or "")
    assert torch.equal(theta(name), theta(f"{name}@forms"))
    again = pickle.loads(pickle.dumps(algorithm(f"{name}@forms")))  # noqa: S301
    assert again == algorithm(f"{name}@forms")
    assert {key: field.default for key, field in kind.model_fields.items()} == {
        **{key: field.default for key, field in ALGORITHMS[name].model_fields.items()},
        **find_moved(name),
    }


def other(name: str, option: str, default: Any) -> Any:
    """Return a value of an option that is not its default."""
    annotation = VARIANTS[f"{name}@forms"].model_fields[option].annotation
    choices = typing.get_args(annotation) if typing.get_origin(annotation) is typing.Literal else ()
    return next((one for one in (*choices, True, False, 0.5) if type(one) is type(default) and one != default), "a.npy")


@pytest.mark.parametrize("name", METHODS)
def test_an_option_that_has_moved_is_refused_with_its_new_name(name: str) -> None:
    """At its default it may stay: a configuration of 0.2 holds every option."""
    defaults = find_moved(name)
    assert algorithm({"name": name, **defaults}) == algorithm(name)
    for option, default in defaults.items():
        value = other(name, option, default)
        with pytest.raises(UserError, match=rf"^algorithm\.{option}: .* it is an option of {name}@forms"):
            algorithm({"name": name, option: value})
        assert name_forms({"algorithm": {"name": name, option: value}})["algorithm"]["name"] == f"{name}@forms"
    assert name_forms({"algorithm": {"name": name, **defaults}})["algorithm"]["name"] == name


def test_a_sweep_with_an_old_option_is_refused_in_one_line(tmp_path: Path, call: Call) -> None:
    grid = {"algorithm": [{"name": "fedsol", "proximal": {"name": "scaffold", "variates": "samples"}}]}
    file = write(tmp_path, {"name": "old", "base": small.sections(runtime={}), "grid": grid})
    code, out, err = call("sweep", str(file), "--dry-run")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "algorithm.proximal.variates: found 'samples'; it is an option of scaffold@forms" in err


@pytest.mark.parametrize("name", ["fedavg@forms", "nothing@forms", "scaffold@other"])
def test_an_unknown_form_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=rf"^algorithm\.name: unknown name '{name}'"):
        algorithm(name)
    with pytest.raises(UserError, match=r"^algorithm\.proximal\.name: unknown name 'fedsam@forms'"):
        algorithm({"name": "fedsol", "proximal": "fedsam@forms"})


def test_they_are_listed_in_a_group_of_their_own(call: Call) -> None:
    out = call("list", "algorithms").out
    methods, _, forms = out.partition("Other forms of methods, with the options that they add:\n")
    assert "@forms" not in methods
    assert [line.split()[0] for line in forms.splitlines()] == sorted(VARIANTS)
    assert "D-32" in call("list", "algorithms", "scaffold@forms").out
    assert "Karimireddy" in call("cite", "scaffold@forms").out
