"""Which fields enter the identity of a cell, for every kind of section and component."""

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
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
    assert before == ({"name": kind.name} if issubclass(kind, Component) else {})
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


@pytest.mark.parametrize("path", ["builtins:int", "no_such_module:X"])
def test_a_class_whose_source_cannot_be_read_is_refused(path: str) -> None:
    with pytest.raises(
        UserError, match=rf"^algorithm\.name: the source of {path} cannot be read, .*put the class in a"
    ):
        digest_source("algorithm", path)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder on the path; modules that a test imports from it, or another test of that name, are forgotten."""
    monkeypatch.syspath_prepend(tmp_path)

    def forget() -> None:
        for name in list(sys.modules):
            if name.partition(".")[0] in ("own", "one", "helper", "pack", "lone", "library", "broken"):
                del sys.modules[name]

    forget()
    yield tmp_path
    forget()


def write(folder: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


IMPORTS: dict[str, tuple[str, dict[str, str], str]] = {
    "a name from a module": ("own", {"own.py": "from helper import K"}, "helper.py"),
    "a module": ("own", {"own.py": "import helper as h"}, "helper.py"),
    "in a function": ("own", {"own.py": "def f():\n    import helper\n"}, "helper.py"),
    "a star": ("own", {"own.py": "from helper import *"}, "helper.py"),
    "through another module": ("own", {"own.py": "import one", "one.py": "import helper"}, "helper.py"),
    "in a circle": ("own", {"own.py": "import one", "one.py": "import own, helper"}, "helper.py"),
    "a package": ("own", {"own.py": "import pack", "pack/other.py": ""}, "pack/__init__.py"),
    "a module of a package": ("own", {"own.py": "from pack import helper", "pack/__init__.py": ""}, "pack/helper.py"),
    "without __init__.py": ("own", {"own.py": "import pack.helper"}, "pack/helper.py"),
    "inside a package": (
        "pack.own",
        {"pack/own.py": "from .helper import K", "pack/__init__.py": ""},
        "pack/helper.py",
    ),
    "next to the package": ("pack.own", {"pack/own.py": "import helper", "pack/__init__.py": ""}, "helper.py"),
    "the package's own file": ("pack.own", {"pack/own.py": "X = 1"}, "pack/__init__.py"),
    "a package as plug-in": ("pack", {"pack/__init__.py": "from . import helper"}, "pack/helper.py"),
}


@pytest.mark.parametrize("case", IMPORTS)
def test_modules_that_a_plug_in_imports_from_its_folder_enter_the_digest(case: str, folder: Path) -> None:
    """What it does not import does not enter."""
    module, files, helper = IMPORTS[case]
    write(folder, files | {helper: "K = 1", "another.py": ""})
    before = digest_source("algorithm", f"{module}:X")
    write(folder, {"another.py": "K = 1", "table.csv": "1"})
    assert digest_source("algorithm", f"{module}:X") == before
    write(folder, {helper: "K = 2"})
    assert digest_source("algorithm", f"{module}:X") != before
    write(folder, {helper: "K = 1"})
    assert digest_source("algorithm", f"{module}:X") == before
    write(folder, {helper: "K = "})  # what cannot be parsed is hashed as it is
    assert digest_source("algorithm", f"{module}:X") != before


def test_a_plug_in_without_helpers_has_the_digest_of_its_source(folder: Path) -> None:
    """Cells of such plug-ins keep their hashes: SHA-256 of the text. Libraries are not followed."""
    source = "import json, numpy as np\nfrom fedray.common import rng\nfrom torch import Tensor\nX = 1\n"
    write(folder, {"lone.py": source})
    assert digest_source("algorithm", "lone:X") == hashlib.sha256(source.encode()).hexdigest()


def test_other_packages_of_an_installed_plug_in_are_not_followed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `site-packages` everything is in one folder: only the plug-in's own package counts."""
    write(folder / "site-packages", {"pack/__init__.py": "", "pack/own.py": "import pack.helper, library"})
    write(folder / "site-packages", {"pack/helper.py": "K = 1", "library.py": "K = 1"})
    monkeypatch.syspath_prepend(folder / "site-packages")
    before = digest_source("algorithm", "pack.own:X")
    write(folder / "site-packages", {"library.py": "K = 2"})
    assert digest_source("algorithm", "pack.own:X") == before
    write(folder / "site-packages", {"pack/helper.py": "K = 2"})
    assert digest_source("algorithm", "pack.own:X") != before
