"""Which fields enter the identity of a cell, for every kind of section and component."""

import sys
import types
from typing import Annotated, Any

import pytest
from pydantic import Field

from fedray.algorithms.fedavg import FedAvg
from fedray.common.component import Checked, Component
from fedray.common.errors import UserError
from fedray.common.identity import EXCLUDED, Later, source_digest
from fedray.config import RunConfig
from fedray.models.cnn import MLP
from fedray.partitions.schemes import IID
from fedray.sections import Clients, Evaluation, Personal, Training


def entries(section: Checked) -> dict[str, Any]:
    written = section.options() if isinstance(section, Component) else section.model_dump(mode="json")
    return section.identity_entries(written)


@pytest.mark.parametrize("kind", [FedAvg, MLP, IID, Clients, Training, Evaluation, Personal])
def test_a_later_field_enters_only_where_it_is_not_its_first_value(kind: type[Checked]) -> None:
    class Grown(kind):  # type: ignore[misc,valid-type]
        later: Annotated[int, Later()] = Field(3, ge=0)
        other: Annotated[bool, Later(first=False)] = True
        speed: Annotated[int, EXCLUDED] = 1

    before = entries(kind())
    assert entries(Grown(other=False)) == before
    assert entries(Grown(other=False, speed=9)) == before
    assert entries(Grown(other=False, later=4)) == before | {"later": 4}
    assert entries(Grown()) == before | {"other": True}, "its first value is not the default any more"


def test_fields_of_a_section_inside_a_section_declare_themselves() -> None:
    class Inner(Checked):
        old: int = 1
        later: Annotated[int, Later()] = 0

    class Outer(Checked):
        one: Inner | None = Inner()
        many: tuple[Inner, ...] = (Inner(), Inner(later=2))
        named: dict[str, Inner] = {"a": Inner()}

    assert entries(Outer()) == {
        "one": {"old": 1},
        "many": [{"old": 1}, {"old": 1, "later": 2}],
        "named": {"a": {"old": 1}},
    }
    assert entries(Outer(one=None))["one"] is None


@pytest.mark.parametrize("kind", [FedAvg, MLP, IID, Training])
def test_a_revision_enters_where_it_is_not_0(kind: type[Checked], monkeypatch: pytest.MonkeyPatch) -> None:
    before = entries(kind())
    monkeypatch.setattr(kind, "revision", 2)
    assert entries(kind()) == before | {"revision": 2}


@pytest.mark.parametrize("kind", [FedAvg, MLP, IID])
def test_the_source_of_a_plug_in_enters(kind: type[Component], monkeypatch: pytest.MonkeyPatch) -> None:
    named = type("Named", (kind,), {"name": f"{__name__}:Named", "__module__": __name__})
    before = entries(named())
    assert before == entries(kind()) | {"name": named.name, "source": source_digest("", named.name)}
    monkeypatch.setattr("inspect.getsource", lambda module: "another text")
    assert entries(named())["source"] != before["source"]


@pytest.mark.parametrize("path", ["made_up_module:X", "builtins:int", "no_such_module:X"])
def test_a_class_whose_source_cannot_be_read_is_refused(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "made_up_module", types.ModuleType("made_up_module"))
    with pytest.raises(
        UserError, match=rf"^algorithm\.name: the source of {path} cannot be read, .*put the class in a"
    ):
        source_digest("algorithm", path)


def test_the_runtime_enters_by_what_can_change_a_bit() -> None:
    config = {"data": "digits", "partition": "iid", "model": "lenet", "algorithm": "fedavg"}

    def runtime(**given: Any) -> Any:
        return RunConfig.parse(config | {"runtime": given}).identity("d")["runtime"]

    assert runtime(actors=4, backend="inline", checkpoint_every=3, cpus_per_actor=2) == {"device": "cpu", "threads": 1}
    assert runtime(actors="auto") == {"device": "cpu", "threads": 1}
    assert runtime(threads=2, gpus_per_actor=0.5) == {
        "device": "cuda",
        "threads": 2,
        "deterministic": True,
        "cuda_graph": False,
    }
