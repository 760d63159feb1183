"""Which fields enter the identity of a cell, for every kind of section and component."""

import sys
import types
from typing import Annotated

import pytest
from pydantic import Field

from fedray.algorithms.fedavg import FedAvg
from fedray.common.errors import UserError
from fedray.components.base import Checked, Component
from fedray.components.identity import EXCLUDED, digest_source
from fedray.config import Clients, Evaluation, Personal, Training
from fedray.models.zoo.cnn import MLP
from fedray.partitions.schemes import IID


@pytest.mark.parametrize("kind", [FedAvg, MLP, IID, Clients, Training, Evaluation, Personal])
def test_a_field_enters_if_it_is_required_or_not_the_default(kind: type[Checked]) -> None:
    class Grown(kind):  # type: ignore[misc,valid-type]
        wanted: int
        later: int = Field(3, ge=0)
        speed: Annotated[int, EXCLUDED] = 1

    before = kind().list_identity_entries()
    assert Grown(wanted=3).list_identity_entries() == before | {"wanted": 3}
    assert Grown(wanted=3, later=3, speed=9).list_identity_entries() == before | {"wanted": 3}
    assert Grown(wanted=3, later=4).list_identity_entries() == before | {"wanted": 3, "later": 4}


def test_sections_inside_a_section() -> None:
    """A nested section enters if any of its values differs from the outer section's default."""

    class Inner(Checked):
        old: int = 1
        speed: Annotated[int, EXCLUDED] = 1

    class Outer(Checked):
        one: Inner | None = Inner()
        none: Inner | None = None
        other: Inner = Inner(old=2)
        many: tuple[Inner, ...] = ()
        named: dict[str, Inner] = {"a": Inner()}

    assert Outer(one=Inner(speed=2), other=Inner(old=2)).list_identity_entries() == {}
    assert Outer(one=None, none=Inner(), other=Inner()).list_identity_entries() == {
        "one": None,
        "none": {},
        "other": {},
    }
    found = Outer(many=(Inner(), Inner(old=3)), named={"a": Inner(), "b": Inner(old=3)}).list_identity_entries()
    assert found == {"many": [{}, {"old": 3}], "named": {"a": {}, "b": {"old": 3}}}


@pytest.mark.parametrize("path", ["made_up_module:X", "builtins:int", "no_such_module:X"])
def test_a_class_whose_source_cannot_be_read_is_refused(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "made_up_module", types.ModuleType("made_up_module"))
    with pytest.raises(
        UserError, match=rf"^algorithm\.name: the source of {path} cannot be read, .*put the class in a"
    ):
        digest_source("algorithm", path)


@pytest.mark.parametrize("kind", [FedAvg, MLP, IID])
def test_the_name_of_a_component_always_enters(kind: type[Component]) -> None:
    assert kind().list_identity_entries() == {"name": kind.name}
