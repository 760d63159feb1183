"""A sweep that extends another."""

from pathlib import Path

import pytest

from fedray.common.errors import UserError
from fedray.sweep.document import get_sweeps_folder, load_document
from fedray.sweep.sweep import Sweep

OTHER = """
name: other
base: {data: digits, partition: {name: dirichlet, alpha: 0.1}, training: {rounds: 4, lr: 0.1}}
grid: {algorithm: [fedavg, fedsam], seed: [0, 1, 2]}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "other.yaml").write_text(OTHER)
    (tmp_path / "run.yaml").write_text("data: digits\nalgorithm: fedavg\n")
    return tmp_path


def write(folder: Path, text: str, name: str = "own.yaml") -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_base_is_changed_and_other_keys_are_replaced(folder: Path) -> None:
    """A mapping is merged into `training` but replaces `partition`, which is a component."""
    text = "extends: other.yaml\nname: own\nbase: {partition.alpha: 0.6, training: {lr: 1}}\ngrid: {seed: [7]}"
    write(folder, text)
    ((config, _),) = Sweep.load(folder / "own.yaml").points
    assert config == {
        "data": "digits",
        "partition": {"name": "dirichlet", "alpha": 0.6},
        "training": {"rounds": 4, "lr": 1},
        "seed": 7,
    }
    text = "extends: own.yaml\nname: third\nbase: {partition: iid}"
    ((third, _),) = Sweep.load(write(folder, text, "third.yaml")).points
    assert third == config | {"partition": "iid"}
    bare = load_document(write(folder, "extends: own.yaml\nname: bare\ngrid: []", "bare.yaml"))
    assert "grid" not in bare, "an empty list leaves the other's out"


def test_a_shipped_sweep_is_extended_by_name(folder: Path) -> None:
    """The cells are those of the shipped sweep with one key changed."""
    sweep = Sweep.load(write(folder, "extends: quickstart\nname: own\nbase: {training.rounds: 2}"))
    shipped = Sweep.load(get_sweeps_folder() / "quickstart.yaml")
    changed = shipped.with_overrides({"training.rounds": 2, "name": "own"})
    assert list(sweep.points) == list(changed.points) != list(shipped.points)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("extends: 3\nname: own", "extends: found 3; a sweep's name or file is required"),
        ("extends: ''\nname: own", "own.yaml: extends: found ''; a path is required"),
        ("extends: gone.yaml\nname: own", "gone.yaml: cannot be read: No such file or directory"),
        ("extends: quickstar\nname: own", "extends: 'quickstar': .* did you mean quickstart?"),
        ("extends: other\nname: own", "extends: 'other': there is no such file; did you mean other.yaml?"),
        ("extends: run.yaml\nname: own", "extends: .*run.yaml has no `base`; the file of a sweep is required"),
        ("extends: own.yaml\nname: own", "own.yaml: extends: the file extends itself"),
        ("extends: other.yaml", "own.yaml: name: a sweep that extends .*other.yaml needs a name of its own"),
        ("extends: other.yaml\nname: other", "own.yaml: name: a sweep that extends .*other.yaml needs a name"),
        ("extends: other.yaml\nname: own\nbase: 3", "own.yaml: base: found 3, which is not a mapping"),
        (
            "extends: other.yaml\nname: own\nbase: {training.lr.x: 1}",
            "own.yaml: base: lr.x: lr holds 0.1, which has",
        ),
        ("extends: other.yaml\nname: own\nsamples: 3", "own.yaml: samples: found 3; without `search`"),
    ],
)
def test_what_cannot_be_extended(folder: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Sweep.load(write(folder, text))
