"""Documentation of methods: docs/algorithms.md is current and complete."""

from pathlib import Path

import pytest

from docs.generate.algorithms import page
from fedray.algorithms import ALGORITHMS
from fedray.components.base import describe_allowed
from fedray.config import Clients, Training
from fedray.datasets import DATASETS
from fedray.models import MODELS
from fedray.partitions import PARTITIONS


def test_the_page_is_current() -> None:
    written = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text(encoding="utf-8")
    assert written == page(), "run: python -m docs.generate.algorithms > docs/algorithms.md"


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_method_is_described(name: str) -> None:
    """A paper, a one-line idea, a docstring of its own that begins with the local step, a meaning for every option."""
    kind = ALGORITHMS[name]
    assert kind.paper
    assert kind.idea
    assert "\n" not in kind.idea
    formula = (kind.__dict__.get("__doc__") or "").partition("\n\n")[0]
    assert "q = " in formula
    assert all(field.description for field in kind.model_fields.values())


def test_ranges() -> None:
    fields = {name: kind.model_fields for name, kind in ALGORITHMS.items()}
    assert describe_allowed(fields["fedprox"]["mu"]) == "[0, ∞)"
    assert describe_allowed(fields["fedcm"]["alpha"]) == "(0, 1]"
    assert describe_allowed(fields["fedavgm"]["beta"]) == "[0, 1)"
    assert describe_allowed(fields["fedtoga"]["perturbation"]) == "`fusion`, `global`, `neighbour`"
    assert describe_allowed(fields["fedmuon"]["nesterov"]) == "`true`, `false`"


def test_a_field_says_itself_what_its_type_does_not() -> None:
    assert describe_allowed(Training.model_fields["batch_size"]) == "integer in (0, ∞) or `full`"
    assert describe_allowed(Clients.model_fields["per_round"]) == "integer in (0, total] or a fraction in (0.0, 1.0]"
    fields = [
        field
        for kind in (*DATASETS.values(), *MODELS.values(), *PARTITIONS.values())
        for field in kind.model_fields.values()
    ]
    assert not [
        field for field in fields if "typing." in describe_allowed(field) or "<class" in describe_allowed(field)
    ]
