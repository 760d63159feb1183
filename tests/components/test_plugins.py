"""Classes of the user's own: found in every section, refused in one line, and the working directory searched last; and
which fields enter the identity of a cell, for every kind of section and component."""

import hashlib
import importlib
import math
import pickle
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar
from unittest.mock import Mock

import numpy as np
import pytest
from pydantic import Field
from torch import Tensor, nn

import fedray
from fedray.algorithms.base import Algorithm, Client
from fedray.algorithms.fedavg import FedAvg
from fedray.common.errors import UserError
from fedray.components import sources
from fedray.components.base import Checked, Component
from fedray.components.identity import EXCLUDED, FILE, list_paths
from fedray.components.plugins import load_class
from fedray.components.sources import digest_source
from fedray.config import Clients, Evaluation, Personal, RunConfig, Training
from fedray.datasets.arrays import Digits
from fedray.datasets.dataset import Dataset
from fedray.models.base import ModelSpec
from fedray.models.zoo.cnn import MLP
from fedray.partitions.base import Partition
from fedray.partitions.schemes import IID
from fedray.partitions.shards import Shards
from fedray.probes.probe import EvaluatedRound, Probe
from fedray.sweep.draws import get_cost
from fedray.sweep.plan import make_label
from tests.conftest import each


class Scaled(Algorithm):
    factor: float = 1.0

    def direction(self, c: Client) -> Tensor:
        return self.factor * c.grad(c.theta)


class Striped(Partition):
    offset: int = 0

    def draw(self, labels: np.ndarray, classes: int, clients: int, rng: np.random.Generator) -> Shards:
        return Shards.from_owner((np.arange(len(labels)) + self.offset) % clients, clients)


class Few(Digits):
    count: int = 100

    def read(self) -> Dataset:
        whole = super().read()
        return Dataset("few", whole.x_train[: self.count], whole.y_train[: self.count], whole.x_test, whole.y_test, 10)


class Linear(nn.Sequential):
    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(int(np.prod(input_shape)), num_classes))


class Longest(Probe):
    metrics = {"longest": "largest weight"}

    def of_round(self, seen: EvaluatedRound) -> dict[str, float]:
        return {"longest": float(seen.theta.abs().max())}


def config(**changes: Any) -> dict[str, Any]:
    return {
        "data": {"name": f"{__name__}:Few", "count": 60}, "partition": {"name": f"{__name__}:Striped", "offset": 1},
        "clients": {"total": 4, "per_round": 2}, "model": f"{__name__}:Linear",
        "algorithm": {"name": f"{__name__}:Scaled", "factor": 0.5}, "training": {"rounds": 2, "local_epochs": 1},
        "evaluation": {"probes": [f"{__name__}:Longest"]}, "runtime": {"backend": "inline"}, **changes,
    }  # fmt: skip


def test_every_section_takes_a_class_an_instance_or_its_name() -> None:
    run = RunConfig.parse(config())
    assert RunConfig.parse(run.resolve()) == run
    assert run.data.load().y_train.shape == (60,)
    classes = ("Few", "Striped", "Linear", "Scaled", "Longest")
    assert run.make_identity("d")["sources"].keys() == {f"{__name__}:{name}" for name in classes}
    result = fedray.simulate(run)
    assert result.history[-1]["longest"] == float(result.theta.abs().max())
    own = {"data": Few(count=60), "partition": {"name": Striped, "offset": 1}, "algorithm": Scaled(factor=0.5)}
    given = RunConfig.parse(config(**own, model=Linear))
    assert (given.resolve(), given.hash_cell("d")) == (run.resolve(), run.hash_cell("d"))


def test_a_class_travels_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that unpacks a run imports its classes; one that cannot says so in one line."""
    run = RunConfig.parse(config())
    packed = run.pack()
    assert RunConfig.unpack(packed) == run
    monkeypatch.setattr("importlib.import_module", Mock(side_effect=ImportError("no such file here")))
    with pytest.raises(UserError, match=r"^data\.name: '.*:Few' cannot be imported: ImportError: no such file here$"):
        RunConfig.unpack(packed)


def test_arrays_from_memory(caplog: pytest.LogCaptureFixture) -> None:
    """The data of `digits`, given as arrays: the same numbers and the same digest. Without a test set only if clients
    have one, where a sample that is there four times is told."""
    loaded = Digits().load()
    arrays = {"x_train": loaded.x_train[:, 0], "y_train": loaded.y_train}
    arrays |= {"x_test": loaded.x_test[:, 0], "y_test": loaded.y_test}
    given = RunConfig.parse(config(data={**arrays, "mean": [0.3054], "std": [0.3763]}))
    assert given.data.load().digest == loaded.digest
    assert len(given.pack()) < 10_000, "actors get the data set apart from it"
    assert fedray.simulate(given).theta.equal(fedray.simulate(config(data="digits")).theta)
    with pytest.raises(UserError, match=r"^data lacks y_train, y_test; found: x_test, x_train$"):
        fedray.simulate(config(data={"x_train": arrays["x_train"], "x_test": arrays["x_test"]}))
    pool = {"x_train": np.repeat(np.eye(9, dtype=np.float32), 4, 0), "y_train": np.arange(36) % 2}
    with pytest.raises(UserError, match=r"^data lacks x_test, y_test; found: .*; data\.test: {from: clients} makes a"):
        fedray.simulate(config(data=pool))
    split = fedray.simulate(config(data={**pool, "test": {}}, partition="iid")).problem.split
    assert len(split.train.indices) + len(split.test.indices) == 36
    assert "data: 27 samples repeat the inputs of others; accuracy on them is not" in caplog.text
    arrays |= {"client_train": loaded.y_train, "test": {}}
    with pytest.raises(UserError, match=r"have no natural clients \(client_train and, with data\.test, client_test\)$"):
        fedray.simulate(config(data=arrays, partition="natural"))
    with pytest.raises(UserError, match=r"^data\.name: arrays exist in memory only; pass them to fedray\.simulate"):
        fedray.simulate(config(data="arrays"))


class Constructed(Scaled):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)


class Misspelt(Scaled):
    def uplod(self, c: Client) -> dict[str, Any]:
        return {}


class Idle(Scaled):
    def on_round_start(self, c: Client) -> None: ...


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # pydantic's

    class Hooked(Scaled):
        weights: float = 0.1  # type: ignore[assignment]

    class Asked(Scaled):
        finetuning: float = 0.1  # type: ignore[assignment]

    class Revised(Scaled):
        revision: int = 3  # type: ignore[misc]

    class Called(Scaled):
        function: Callable[..., Any] = math.sqrt


class Endless(Scaled):
    limit: float = math.inf


class Tabled(Scaled):
    table: dict[str, float] = {}


class Namesake(Scaled):
    name: ClassVar[str] = "fedavg"


@each(
    ("algorithm", "Constructed", "Constructed defines __init__; declare its options as fields instead"),
    ("algorithm", "Misspelt", "Misspelt defines uplod, which is no hook; did you mean 'upload'?"),
    ("algorithm", "Idle", "Idle defines on_.*_start, which nothing calls; it is no hook .docs/plug-ins.md lists"),
    ("algorithm", "Hooked", "Hooked has an option weights, which is a hook; choose another name"),
    ("algorithm", "Asked", "Asked has an option finetuning, which is a hook; choose another name"),
    ("algorithm", "Revised", "Revised makes revision an option by its type, and nothing would read it"),
    ("algorithm", "Called", "Called: no file can hold the default of its option function"),
    ("algorithm", "Endless", "Endless: no file can hold the default of its option limit"),
    ("algorithm", "Namesake", "Namesake has name = 'fedavg', which is one of fedray's; choose another one"),
    ("algorithm", "Striped", "Striped is not a subclass of fedray.algorithms.base.Algorithm"),
    ("partition", "Few", "Few is not a subclass of fedray.partitions.base.Partition"),
    ("data", "Linear", "Linear is not a subclass of fedray.datasets.base.DataSource"),
    ("model", "Striped", "Striped is not a subclass of torch.nn.Module"),
    ("evaluation", "Few", "Few is not a subclass of fedray.probes.probe.Probe"),
    ("partition", "Nothing", "cannot be imported: AttributeError: module"),
    ("model", "Absent", r"Absent\.build returns a NoneType; a torch\.nn\.Module is required"),
)
def test_what_cannot_serve_is_refused_in_one_line(section: str, name: str, line: str) -> None:
    path = f"{__name__}:{name}"
    value, key = ({"probes": [path]}, "evaluation.probes") if section == "evaluation" else (path, f"{section}.name")
    with pytest.raises(UserError, match=rf"^({key}|{section}): .*{line}"):
        fedray.simulate(config(**{section: value}))


def test_a_label_has_an_option_that_is_a_mapping() -> None:
    own = {"name": f"{__name__}:Tabled", "table": {"a": 1.0}}
    words = make_label({"algorithm": own}, RunConfig.parse(config(algorithm=own))).split()
    assert words[1:3] == ["table={'a':", "1.0}"]


class Torn(Striped):
    def draw(self, *arguments: Any) -> Shards:
        raise ValueError("no")


def test_of_two_classes_in_one_file_the_one_that_raises_is_blamed() -> None:
    with pytest.raises(UserError, match=r"^partition: .*:Torn raises ValueError: no \(test_plugins\.py:\d+ in draw\)$"):
        fedray.simulate(config(partition=Torn, algorithm=Scaled))


class Buffered(Scaled):
    def direction(self, c: Client) -> Tensor:
        self.buf = c.theta
        return self.buf


class Kept(Striped):
    def draw(self, *arguments: Any) -> Shards:
        self.buf = 1  # type: ignore[attr-defined]
        return super().draw(*arguments)


@each(
    (
        "algorithm",
        "Buffered",
        "; what stays is c.state.buf, if client_state begins it, or server.state.buf, if server_state does",
    ),
    ("partition", "Kept", ""),
)
def test_a_class_that_sets_its_attribute_is_told_what_stays(section: str, name: str, line: str) -> None:
    """Pydantic's words speak of an instance that is frozen, and name a page of theirs."""
    with pytest.raises(UserError) as caught:
        fedray.simulate(config(**{section: f"{__name__}:{name}"}))
    said = f"{section}: {__name__}:{name} sets self.buf, and its attributes stay as they are{line} (test_plugins.py:"
    assert str(caught.value).startswith(said)


class Absent(ModelSpec):
    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        return None  # type: ignore[return-value]


class Lazy(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.LazyConv2d(3, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(10))


class Sized(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(108, 10))


def test_lazy_layers_take_their_sizes_from_the_data() -> None:
    lazy, sized = (fedray.simulate(config(model=f"{__name__}:{name}")).theta for name in ("Lazy", "Sized"))
    assert lazy.equal(sized)


def test_a_class_that_workers_cannot_import_is_refused() -> None:
    class Local(Scaled):
        """Of a function."""

    assert fedray.simulate(config(algorithm=Local)).summary()["rounds"] == 2
    said = r"^algorithm\.name: Ray's workers cannot import .*<locals>\.Local; put the class"
    with pytest.raises(UserError, match=said):
        RunConfig.parse(config(algorithm=Local, runtime={"backend": "ray"}))


@pytest.mark.parametrize("kind", [FedAvg, MLP, IID, Clients, Training, Evaluation, Personal])
def test_a_field_enters_if_it_is_required_or_not_the_default(kind: type[Checked]) -> None:
    class Grown(kind):  # type: ignore[misc,valid-type]
        wanted: int
        later: int = Field(3, ge=0)
        share: int | float = 1
        speed: Annotated[int, EXCLUDED] = 1

    before = kind().list_identity_entries()
    assert before == ({"name": kind.name} if issubclass(kind, Component) else {})
    assert Grown(wanted=3).list_identity_entries() == before | {"wanted": 3}
    assert Grown(wanted=3, later=3, speed=9).list_identity_entries() == before | {"wanted": 3}
    assert Grown(wanted=3, later=4).list_identity_entries() == before | {"wanted": 3, "later": 4}
    assert Grown(wanted=3, share=1.0).list_identity_entries() == before | {"wanted": 3, "share": 1.0}, "not one: all"


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
    found = Outer(one=None, none=Inner(), other=Inner()).list_identity_entries()
    assert found == {"one": None, "none": {}, "other": {}}
    found = Outer(many=(Inner(), Inner(old=3)), named={"a": Inner(), "b": Inner(old=3)}).list_identity_entries()
    assert found == {"many": [{}, {"old": 3}], "named": {"a": {}, "b": {"old": 3}}}


def test_files_enter_by_their_content_and_sets_in_one_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also optional, several and in a section inside. What is written of an option with an alias is read again."""
    monkeypatch.chdir(tmp_path)

    class Inner(Checked):
        path: Annotated[str, FILE] = "i"

    class Filed(FedAvg):
        table: Annotated[str, FILE] | None = None
        several: Annotated[tuple[str, ...], FILE] = ()
        inner: Inner | None = None
        words: frozenset[str] = frozenset()
        lam: float = Field(0.1, alias="lambda")

    given = {"table": "a", "several": ["a", "b"], "inner": {"path": "b"}, "words": ["y", "x", "z"]}
    found, seen = Filed.model_validate(given), set[str]()
    for content in ("1", "2", "1"):
        for name in "ab":
            Path(name).write_text(content)
        digest, entries = hashlib.sha256(content.encode()).hexdigest(), found.list_identity_entries()
        assert (entries["table"], entries["several"], entries["inner"]) == (digest, [digest] * 2, {"path": digest})
        seen.add(str(entries))
    assert (entries["words"], len(seen)) == (["x", "y", "z"], 2)
    assert list_paths(found) == ["a", "a", "b", "b"]
    assert Filed.model_validate({key: one for key, one in found.list_options().items() if key != "name"}) == found


@pytest.mark.parametrize("path", ["builtins:int", "no_such_module:X"])
def test_a_class_whose_source_cannot_be_read_is_refused(path: str) -> None:
    said = rf"^algorithm\.name: the source of {path} cannot be read, .*put the class in a"
    with pytest.raises(UserError, match=said):
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
    "in a package": ("pack.own", {"pack/own.py": "from .helper import K", "pack/__init__.py": ""}, "pack/helper.py"),
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


OWN = """from fedray.algorithms.fedavg import FedAvg
import helper
class X(FedAvg):
    def direction(self, c):
        return sum(c.grad(c.theta) for _ in range(getattr(helper, "K", 1)))
"""


def test_a_class_whose_source_has_changed_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the same Python, until its modules are loaded again; in a process that gets it from one that had the old. Also
    if this Python imported it before fedray did, which Python's compiled files tell. K is its gradients per step."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    write(folder, {"own.py": OWN, "one.py": OWN, "helper.py": "K = 1"})
    importlib.import_module("one")
    packed = (old := RunConfig.parse(config(algorithm="own:X"))).pack()
    assert get_cost(old).gradients == 1
    fedray.simulate(config(algorithm="own:X"))
    write(folder, {"helper.py": "K = 20"})
    said = "^algorithm: %s:X, or a module that it imports, has changed since this Python imported it; start Python"
    for name, track in (("own", "again"), ("own", None), ("one", None)):
        with pytest.raises(UserError, match=said % name):
            fedray.simulate(config(algorithm=f"{name}:X"), track=track)
    importlib.reload(sys.modules["own"])
    with pytest.raises(UserError, match=said % "own"):  # the helper is still the old one
        fedray.simulate(config(algorithm="own:X"))
    for name in ("helper", "own"):
        importlib.reload(sys.modules[name])
    run = RunConfig.parse(config(algorithm="own:X"))
    assert get_cost(run).gradients == 20
    assert run.hash_cell("") == RunConfig.unpack(run.pack()).hash_cell("")
    with pytest.raises(UserError, match=r"^algorithm\.name: own:X, or a module that it imports, is not what it was in"):
        RunConfig.unpack(packed)


def test_a_class_is_that_of_the_folder_of_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook that changes the folder: so are the modules that it imports, and the folder before is not searched."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("first", "second"):
        files = {"own_there.py": "from own_beside import K\nclass X:\n    k = K\n", "own_beside.py": f"K = {name!r}"}
        write(tmp_path / name, files | {f"own_{name}.py": "class X: ..."})
        monkeypatch.chdir(tmp_path / name)
        assert vars(load_class("algorithm", "own_there:X"))["k"] == name
        load_class("algorithm", f"own_{name}:X")
    with pytest.raises(UserError, match="No module named 'own_first' in "):
        load_class("algorithm", "own_first:X")


METHOD = "class Y:\n    @{}\n    def f(cls):\n        return K\n"


@pytest.mark.parametrize("text", ["def f():\n    return K\n", METHOD.format("property"), METHOD.format("classmethod")])
def test_functions_are_known_without_compiled_files(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    write(folder, {"own.py": OWN, "helper.py": text})
    importlib.import_module("own")
    fedray.simulate(config(algorithm="own:X"))
    write(folder, {"one.py": OWN, "helper.py": text.replace("K", "20")})
    with pytest.raises(UserError, match=r"^algorithm: one:X, or a module that it imports, has changed since this"):
        fedray.simulate(config(algorithm="one:X"))


HELD = ["own:X", "pack.own:X", "library.own:X"]
CHILD = """
import importlib, inspect, pickle, sys
from fedray.components import sources
sys.path[:0], taken, first = pickle.loads(sys.stdin.buffer.read())
for name in first:
    importlib.import_module(name)
sources.take_sources(taken)
for path in sys.argv[1:]:
    module, _, name = path.partition(":")
    module = importlib.import_module(module)
    assert inspect.getsource(module) == sources.read_source(module)
    print(getattr(module, name).K, sources.digest_source("algorithm", path))
"""


def import_in_child(folder: Path, taken: sources.Sources, first: Sequence[str] = ()) -> list[list[str]]:
    """What another process gets of the classes `HELD`: their K and digest. first: modules that it has loaded before."""
    given = pickle.dumps(([str(folder)] if first else [], taken, first))
    done = subprocess.run([sys.executable, "-c", CHILD, *HELD], input=given, capture_output=True, check=True)
    return [line.split() for line in done.stdout.decode().splitlines()]


@pytest.mark.parametrize("change", ["edited", "deleted", "shadowed"])
def test_another_process_imports_what_its_call_has_read(change: str, folder: Path) -> None:
    """A module, one of a package and one of a folder without `__init__.py`, each with a helper. Without what was read,
    and where it is loaded already, it gets what is there now."""
    of_helper = "from helper import K as H\nclass X:\n    K = H\n"
    of_values = "from . import values\nclass X:\n    K = values.K\n"
    helpers = ["helper.py", "pack/values.py", "library/values.py"]
    write(folder, {"own.py": of_helper, "pack/own.py": of_values, "library/own.py": of_values, "pack/__init__.py": ""})
    write(folder, {name: f"K = {k}" for k, name in enumerate(helpers, 1)})
    with sources.hold_sources():
        before = [digest_source("algorithm", path) for path in HELD]
        with sources.hold_sources():
            pass  # a call within this one
        if change == "deleted":
            for path in folder.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        if change == "shadowed":  # by packages that did not exist, and by a file that makes a folder one
            write(folder, {"helper/__init__.py": "K = 40", "pack/values/__init__.py": "K = 50"})
            write(folder, {"own/__init__.py": "", "library/__init__.py": "raise SystemExit"})
        if change == "edited":
            write(folder, {"own.py": f"# new\n{of_helper}"} | {name: f"K = {k}0" for k, name in enumerate(helpers, 1)})
        assert [digest_source("algorithm", path) for path in HELD] == before
        taken = sources.list_held()
    held = [[str(k), digest] for k, digest in enumerate(before, 1)]
    assert import_in_child(folder, taken) == held
    if change == "edited":
        now = import_in_child(folder, sources.Sources("", taken.path, {}))
        assert [k for k, _ in now] == ["10", "20", "30"]
        assert not {digest for _, digest in now} & {*before}
        assert import_in_child(folder, taken, ["own"]) == [now[0], *held[1:]]
    assert sources.list_held().files == {}, "the call is over"


def test_a_digest_is_of_the_source_without_other_packages(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells of such plug-ins keep their hashes: SHA-256 of the text. Libraries are not followed."""
    source = "import json, numpy as np\nfrom fedray.common import rng\nfrom torch import Tensor\nX = 1\n"
    write(folder, {"lone.py": source})
    assert digest_source("algorithm", "lone:X") == hashlib.sha256(source.encode()).hexdigest()
    # In `site-packages` everything is in one folder: only the plug-in's own package counts.
    write(folder / "site-packages", {"pack/__init__.py": "", "pack/own.py": "import pack.helper, library"})
    write(folder / "site-packages", {"pack/helper.py": "K = 1", "library.py": "K = 1"})
    monkeypatch.syspath_prepend(folder / "site-packages")
    before = digest_source("algorithm", "pack.own:X")
    write(folder / "site-packages", {"library.py": "K = 2"})
    assert digest_source("algorithm", "pack.own:X") == before
    write(folder / "site-packages", {"pack/helper.py": "K = 2"})
    assert digest_source("algorithm", "pack.own:X") != before
