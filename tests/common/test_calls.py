"""Values that cross the border between fedray and a user's code."""

from typing import Any, Literal

import numpy as np
import pytest
import torch

import fedray
from fedray.common.calls import check_return, fits, make_plain
from fedray.common.errors import UserError
from fedray.common.vectors import Vectors


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        (np.int64(3), int, True),
        (True, int, False),
        (3.0, int, False),
        (torch.tensor(0.5), float, True),
        (np.float32(0.5), float, True),
        ("0.5", float, False),
        (None, float, False),
        ("body", Literal["all", "body"], True),
        ("legs", Literal["all", "body"], False),
        ({"h": torch.zeros(2)}, Vectors, True),
        ({"h": 0.0}, Vectors, False),
        (None, Vectors, False),
        (None, int | None, True),
        ([1, 2], dict[str, Any], False),
    ],
)
def test_a_value_fits_an_annotation(value: Any, hint: Any, expected: bool) -> None:
    assert fits(value, hint) is expected


def test_an_unknown_argument_names_the_function() -> None:
    """As Python does without the check."""
    for wrong in ({"metrics": ["x"]}, {}):
        with pytest.raises(TypeError, match=r"^run_sweep\(\) (got an unexpected|missing a required)"):
            fedray.run_sweep(**wrong)  # type: ignore[arg-type]


def test_a_result_of_another_type_is_refused_by_the_place_that_gives_it() -> None:
    assert check_return("here", lambda x: x, float)(0.5) == 0.5
    with pytest.raises(UserError, match=r"^here returns None; float is required$"):
        check_return("here", lambda x: None, float)(0.5)


def test_numbers_arrays_and_iterators_are_made_plain() -> None:
    """As YAML would give them: ints, floats, lists and dictionaries."""
    found = make_plain(
        "",
        {
            "seed": np.arange(2),
            "lr": [np.float32(0.5), torch.tensor(0.25)],
            "hidden": (4, 2),
            "rho": iter([1]),
            "none": None,
        },
    )
    assert found == {"seed": [0, 1], "lr": [0.5, 0.25], "hidden": [4, 2], "rho": [1], "none": None}
    assert [type(one) for one in found["seed"] + found["lr"]] == [int, int, float, float]


@pytest.mark.parametrize(
    ("value", "place"),
    [({"a": {"b": object()}}, "a.b"), ({"a": [1, {2}]}, "a.1"), ({"a": np.zeros((2, 2))}, "a"), ({"a": {1: 2}}, "a")],
)
def test_what_no_file_can_hold_is_refused_by_its_key(value: Any, place: str) -> None:
    with pytest.raises(UserError, match=rf"^{place}: found .*; a number, a text, a list or a mapping"):
        make_plain("", value)
