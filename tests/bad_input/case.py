"""A mistake and its answer, and how mistakes are made: changes of a run, a sweep or a file that is right."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tests import small

DIGITS, TRAINING = {"name": "digits"}, {"rounds": 2, "local_epochs": 1}
RUN = small.sections({"name": "fedsam", "rho": 0.1}, (10, 3), partition=0.5, data=DIGITS, training=TRAINING)
BASE = {key: value for key, value in RUN.items() if key != "runtime"}


@dataclass(frozen=True)
class Case:
    """A call, the contents of its folder, and the line of its answer after `fedray: `. In it `{here}` is the folder.
    One that ends with … is the beginning: the rest are names that come and go, or words of another package."""

    arguments: list[str]
    line: str
    prepare: Callable[[Path], object] = lambda here: None
    environment: Mapping[str, str] = field(default_factory=dict)


def run(line: str, *changes: str, prepare: Callable[[Path], object] = lambda here: None, **environment: str) -> Case:
    """`fedray run run.yaml --set ...`."""

    def both(here: Path) -> None:
        (here / "run.yaml").write_text(yaml.safe_dump(RUN | {"seed": 0}))
        prepare(here)

    sets = (word for change in changes for word in ("--set", change))
    return Case(["run", "run.yaml", *sets], line, both, environment)


def sweep(line: str, *options: str, **changes: Any) -> Case:
    """`fedray sweep sweep.yaml --dry-run`."""
    content = yaml.safe_dump({"name": "x", "base": BASE} | changes, sort_keys=False)
    return Case(["sweep", "sweep.yaml", "--dry-run", *options], f"sweep.yaml: {line}", put("sweep.yaml", content))


def text(line: str, content: str | bytes, name: str = "file.yaml") -> Case:
    """`fedray run file.yaml` of a file with this content."""
    return Case(["run", name], line, put(name, content))


def put(name: str, content: str | bytes) -> Callable[[Path], object]:
    """Write a file."""

    def write(here: Path) -> None:
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_bytes(content.encode() if isinstance(content, str) else content)

    return write


def npz(**changes: Any) -> Callable[[Path], object]:
    """Return `data.npz`, correct except for the changes; None leaves an array out."""
    arrays = {
        "x_train": np.zeros((20, 5, 5), np.uint8),
        "y_train": np.arange(20) % 3,
        "x_test": np.zeros((6, 5, 5), np.uint8),
        "y_test": np.arange(6) % 3,
    } | changes
    return lambda here: np.savez(here / "data.npz", **{k: v for k, v in arrays.items() if v is not None})


def half(name: str) -> Callable[[Path], object]:
    """`name` cut in half after `npz()`."""

    def cut(here: Path) -> None:
        npz()(here)
        (here / name).write_bytes((here / name).read_bytes()[:300])

    return cut


def stored(here: Path) -> None:
    """The store of the test's fixture, which holds a sweep named `sweep`."""
    shutil.copytree(here.parent / "store", here, dirs_exist_ok=True)


class Opens:
    """An action that a pickle can be made to perform: here, creating a file."""

    def __reduce__(self) -> tuple[Any, ...]:
        return open, ("owned", "w")


LAUGHS = (
    "a0: &a0 [1,1,1,1,1,1,1,1,1]\n"
    + "".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9))
    + "seed: *a8\n"
)
NPZ = "data={name: npz, path: data.npz}"
