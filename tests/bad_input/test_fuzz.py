"""The configuration reader and the loaders accept any input, or refuse it in one line. The examples are the same in
every run; FEDRAY_FUZZ=N asks for N new ones per test instead."""

import datetime
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torchvision.datasets
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedray.common.errors import UserError
from fedray.common.yaml_files import parse_yaml
from fedray.config import RunConfig
from fedray.datasets import make_data_source
from fedray.datasets.image_folders import CIFAR_CLASSES
from fedray.sweep.draws import iter_points
from fedray.sweep.points import with_key
from fedray.sweep.sweep import Sweep
from tests.bad_input.case import BASE, npz
from tests.datasets import files

pytestmark = pytest.mark.slow

MANY = int(os.environ.get("FEDRAY_FUZZ", "0"))
ALWAYS = settings(derandomize=not MANY, deadline=None, database=None, suppress_health_check=list(HealthCheck))
examples: Callable[[int], Any] = lambda few: settings(ALWAYS, max_examples=MANY or few)  # noqa: E731

ODD = ["digits", "fedsam", "json:Thing", "a\0b", "~nobody/x", "\ud800", "full", 10**400, -(2**63), 2**64]
NUMBERS = st.none() | st.booleans() | st.integers(-3, 300) | st.integers() | st.floats()
TEXTS = st.text(max_size=8) | st.sampled_from(ODD) | st.binary(max_size=4)
SCALARS = NUMBERS | TEXTS | st.dates() | st.just(datetime.timedelta(1))
KEYS = st.sampled_from(["name", "rho", "lr", "alpha", "total", "seed", "path", "epochs"]) | st.text(max_size=5)
VALUES = st.recursive(SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(KEYS, v, max_size=3), max_leaves=6)
WHOLE: dict[str, Any] = RunConfig.parse(BASE | {"evaluation": {"personal": {}}}).resolve()
PLACES = [
    *WHOLE,
    *(f"{section}.{key}" for section, inner in WHOLE.items() if isinstance(inner, dict) for key in inner),
    *("evaluation.personal.epochs", "data.path", "partition.classes", "nowhere", "training.", "model.name.x"),
]
SWEEP = yaml.safe_dump(
    {
        "name": "a/b", "base": BASE, "cases": {"x": [{"seed": 1}, {"seed": 2}]}, "grid": {"algorithm.rho": [0.1, 0.2]},
        "search": {"training.lr": {"loguniform": [0.01, 1]}}, "samples": 2, "stop": {"round": 3},
        "searcher": {"name": "sobol", "seed": 3}, "select": "last10_test_accuracy",
        "scheduler": {"name": "asha", "metric": "test_accuracy", "grace": 2, "factor": 2},
        "smoke": {"base": {"training.rounds": 1}, "grid": {"seed": [1]}},
    },
    sort_keys=False,
)  # fmt: skip


def refused(call: Callable[[], Any]) -> Any:
    """Result of a call, None if it is refused; any other exception, or a second line, is a failure."""
    try:
        return call()
    except UserError as error:
        message = str(error)
    assert "\n" not in message
    assert len(message) < 3000
    return None


def read(value: Any) -> None:
    """A configuration that is accepted is the same when it is written down and read again."""
    config = refused(lambda: RunConfig.parse(value))
    if config is not None:
        assert RunConfig.parse(config.resolve()) == config


@examples(150)
@given(st.dictionaries(KEYS | st.sampled_from(list(WHOLE)), VALUES, max_size=4))
def test_any_mapping(value: dict[str, Any]) -> None:
    read(value)


@examples(400)
@given(st.lists(st.tuples(st.sampled_from(PLACES), VALUES), min_size=1, max_size=2))
def test_a_right_configuration_with_some_values_changed(changes: list[tuple[str, Any]]) -> None:
    value: Any = WHOLE
    for key, new in changes:
        value = refused(lambda value=value, key=key, new=new: with_key(value, key, new)) or value
    read(value)


@examples(150)
@given(st.text(alphabet="ab:1.-_e,[]{}&*!?|>'\"#%@ \n\t<é\x85\ufeff\0", max_size=40))
def test_any_text(text: str) -> None:
    refused(lambda: parse_yaml(text, "text"))


SIGNS = ["[", "]", "{", ": ", "\t", "- ", "&a ", "*a", "!!set ", "!!binary ", "0x" + "f" * 5000, "\0", ".nan", "\n"]
INSERTED = st.text(max_size=4) | st.sampled_from(SIGNS)


@examples(200)
@given(at=st.integers(0, len(SWEEP) - 1), cut=st.integers(0, 12), new=INSERTED, smoke=st.booleans())
def test_a_changed_sweep(tmp_path_factory: pytest.TempPathFactory, at: int, cut: int, new: str, smoke: bool) -> None:
    path = tmp_path_factory.getbasetemp() / "sweep.yaml"
    path.write_bytes((SWEEP[:at] + new + SWEEP[at + cut :]).encode("utf-8", "surrogatepass"))
    sweep = refused(lambda: Sweep.load(path, smoke))
    if sweep is not None:
        for point, _ in zip(points(sweep), range(3), strict=False):
            read(point)


def points(sweep: Sweep) -> Iterator[dict[str, Any]]:
    """As far as they can be made."""
    rest = iter_points(sweep)
    while (point := refused(lambda: next(rest, None))) is not None:
        yield point


def cifar(root: Path, patch: pytest.MonkeyPatch) -> None:
    """Without checksums, as if the files had the published ones."""
    files.cifar(root, patch, "CIFAR10")
    kind = torchvision.datasets.CIFAR10
    for names in ("train_list", "test_list"):
        patch.setattr(kind, names, [[name, None] for name, _ in getattr(kind, names)])
    patch.setattr(kind, "meta", kind.meta | {"md5": None})


def svhn(root: Path, patch: pytest.MonkeyPatch) -> None:
    files.svhn(root, patch)
    found = torchvision.datasets.SVHN.split_list
    patch.setattr(torchvision.datasets.SVHN, "split_list", {key: [*rest, None] for key, (*rest, _) in found.items()})


def leaf(root: Path, name: str, x: Any, y: Any) -> None:
    files.leaf(root, name, {part: {user: ([x] * 2, [y] * 2) for user in "ab"} for part in ("train", "test")})


FORMATS: dict[str, tuple[dict[str, Any], Callable[[Path, pytest.MonkeyPatch], object]]] = {
    "idx": ({"name": "mnist"}, lambda root, _: files.mnist(root)),
    "cifar": ({"name": "cifar10"}, cifar),
    "mat": ({"name": "svhn"}, svhn),
    "medmnist": ({"name": "tissuemnist"}, lambda root, _: files.medmnist(root, "tissuemnist")),
    "npz": ({"name": "npz", "path": "data.npz"}, lambda root, _: npz()(root)),
    "png": ({"name": "cinic10"}, lambda root, _: files.cinic(root, CIFAR_CLASSES)),
    "femnist": ({"name": "femnist"}, lambda root, _: leaf(root, "femnist", [0.5] * 784, 3)),
    "shakespeare": ({"name": "shakespeare"}, lambda root, _: leaf(root, "shakespeare", "a" * 80, "b")),
    "jpeg": ({"name": "fed_isic2019"}, lambda root, _: files.isic(root)),
}


@st.composite
def spoilt(draw: st.DrawFn, content: bytes) -> bytes:
    """Some bytes changed, removed or inserted; half of the time near the start, in the formats' headers."""
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, min(len(content), 64)) | st.integers(0, len(content)))
        cut = draw(st.sampled_from([0, 1, 1, 4, 100, len(content)]))
        content = content[:at] + draw(st.binary(max_size=6)) + content[at + cut :]
    return content


@pytest.mark.parametrize("name", FORMATS)
def test_a_published_file_with_some_bytes_changed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options, make = FORMATS[name]
    root = tmp_path / "data"
    root.mkdir()
    monkeypatch.setenv("FEDRAY_DATA", str(root))
    monkeypatch.chdir(root)
    make(root, monkeypatch)
    source = make_data_source(options)
    right = source.load().digest
    found = [path for path in sorted(root.rglob("*")) if path.is_file() and ".fedray" not in str(path)]
    kept = {path: path.read_bytes() for path in found}
    names = sorted(kept)

    @examples(30)
    @given(st.sampled_from(names[:4] + names[-1:]).flatmap(lambda path: st.tuples(st.just(path), spoilt(kept[path]))))
    def check(changed: tuple[Path, bytes]) -> None:
        path, content = changed
        for other in set(root.rglob("*")) - set(kept):
            if other.is_file():
                other.unlink()
        path.write_bytes(content)
        try:
            data = refused(source.load)
            if data is not None:
                assert np.isfinite(data.x_train).all()
                assert len(data.digest) == len(right)
            assert not [str(other) for other in root.rglob(".*") if other.name != ".fedray-cache"], "half a cache"
        finally:
            path.write_bytes(kept[path])
            shutil.rmtree(root / ".fedray-cache", ignore_errors=True)

    check()
    assert source.load().digest == right
