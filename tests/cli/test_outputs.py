"""Every path that a command writes to: what fedray did not write is not replaced, and a full disk leaves the old file.
`fedray data fetch | check | show`. A new option that takes a path fails here until it is in FILES, FOLDERS or READ."""

import errno
import importlib
import inspect
import json
import os
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints
from unittest.mock import Mock

import numpy as np
import pytest
import torchvision.datasets
import yaml
from typer.testing import CliRunner

import fedray
from fedray.cli.data import data_app
from fedray.cli.main import LAZY, app
from fedray.common.errors import UserError
from fedray.config import RunConfig
from fedray.datasets import make_data_source
from fedray.sweep.sweep import Sweep
from fedray.tracking.tracker import Tracker
from tests import small
from tests.analysis.runs import sheet
from tests.conftest import Call, work_in
from tests.datasets import files

RUN = small.sections("fedavg", (5, 2), 4, training={"rounds": 2, "local_epochs": 1})
FILES: dict[tuple[str, str], tuple[str, str]] = {
    ("run", "save"): ("run run.yaml --save OUT", ".safetensors"),
    ("run", "archive"): ("run cases.yaml --cell 1 --backend inline --archive OUT", ".zip"),
    ("report", "out"): ("report some/sweep --out OUT", ".html"),
    ("export", "file"): ("export some/sweep OUT", ".zip"),
}
"""Command and option -> a call with a file to write, and the ending of its format."""
PICTURE_ONLY = {
    ("tables", "out"): ("tables some/sweep --out OUT", ".md"),
    ("data show", "out"): ("data show digits --set partition.alpha=1 --clients 5 --out OUT", ".png"),
}
"""Files whose format follows from their ending, so that another one is refused in any case."""
FOLDERS: dict[tuple[str, str], tuple[str, str]] = {
    ("run", "save_personal"): ("run personal.yaml --no-track --save-personal OUT", "client-0.safetensors"),
    ("figures", "out"): ("figures some/sweep --kind curves --out OUT", "some-sweep-curves.png"),
    ("sharpness", "out"): ("sharpness --run ID --samples 8 --out OUT", "ID.json"),
}
"""Command and option -> a call with a folder to write into, and a file that is written there."""
READ = {("run", "file"), ("sweep", "file"), ("import", "files")}


def iter_commands() -> Iterator[tuple[str, Any]]:
    """Yield name and function of every command."""
    apps = [("", app), *((f"{group.name} ", group.typer_instance) for group in app.registered_groups)]
    for name, (module, _) in LAZY.items():
        yield name, importlib.import_module(module).main
    for prefix, one in apps:
        for command in one.registered_commands:
            if prefix or command.name not in LAZY:
                yield prefix + (command.name or command.callback.__name__), command.callback


def test_every_path_has_a_case() -> None:
    commands = dict(iter_commands())
    assert len(commands) > 15
    paths = {
        (name, option)
        for name, function in commands.items()
        for option, hint in get_type_hints(function).items()
        if option in inspect.signature(function).parameters and hint in (Path, Path | None, list[Path])
    }
    assert paths == READ | FILES.keys() | PICTURE_ONLY.keys() | FOLDERS.keys()
    for name in {command for command, _ in paths - READ}:
        assert "overwrite" in inspect.signature(commands[name]).parameters, name


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    """A folder with a store of two finished cells, and what the calls read."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        work_in(folder, patch, empty_store)
        configs = [RunConfig.parse(RUN | {"seed": seed}) for seed in (0, 1)]
        digest = configs[0].data.load().digest
        fedray.simulate(configs[1], track="s1", progress=False)
        sweep = Sweep.parse({"name": "some/sweep", "base": RUN, "grid": {"seed": [0, 1]}})
        cells = [small.list_cell(config, digest) for config in configs]
        Tracker().open_sweep(sheet("some/sweep", cells, description="Two seeds.", file=sweep.to_yaml()))
        cased = {"name": "cased", "base": RUN, "cases": [{"algorithm": "fedavg"}, {"algorithm": "scaffold"}]}
        for name, content in (("run", RUN), ("personal", RUN | {"algorithm": "ditto"}), ("cases", cased)):
            (folder / f"{name}.yaml").write_text(yaml.safe_dump(content))
        shown = CliRunner().invoke(app, ["run", "run.yaml", "--json"]).output  # it leaves a checkpoint
        (folder / "id").write_text(json.loads(shown.splitlines()[-1])["run_id"])
    return folder


@pytest.fixture
def here(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return work_in(made, monkeypatch)


def words(call: str, out: str) -> list[str]:
    return [out if word == "OUT" else Path("id").read_text() if word == "ID" else word for word in call.split()]


def refuse_disk(patch: pytest.MonkeyPatch) -> None:
    fail = Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    patch.setattr("fedray.common.whole_files.os.fsync", fail)
    patch.setattr(zipfile.ZipFile, "writestr", fail)  # of an archive, which is not written at once


@pytest.mark.parametrize("case", [pytest.param(case, id=" ".join(case)) for case in {**FILES, **PICTURE_ONLY}])
def test_a_file(case: tuple[str, str], here: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    line, suffix = (FILES | PICTURE_ONLY)[case]
    store, stranger, own = (here / "mlflow.db").read_bytes(), here / "notes.txt", here / f"own{suffix}"
    (here / "link").unlink(missing_ok=True)
    (here / "link").symlink_to("mlflow.db")
    for taken in ("mlflow.db", "link", f".fedray/cells/own{suffix}", f"mlartifacts/x/own{suffix}"):
        err = call(*words(line, taken), "--overwrite").refused
        assert "choose another name" in err or "a file that ends in" in err
    assert (here / "mlflow.db").read_bytes() == store
    stranger.write_text("mine")
    code, _, err = call(*words(line, "notes.txt"))
    assert (code, stranger.read_text()) == (2, "mine")
    assert case in PICTURE_ONLY or "notes.txt exists and does not end in" in err
    if case not in PICTURE_ONLY:
        assert call(*words(line, "notes.txt"), "--overwrite").code == 0
        assert stranger.read_bytes() != b"mine"
    own.write_text("old")
    with monkeypatch.context() as patch:
        refuse_disk(patch)
        assert "No space left on device" in call(*words(line, own.name)).refused
        assert own.read_text() == "old"
    assert call(*words(line, own.name)).code == 0
    assert own.read_bytes() != b"old"
    assert not list(here.glob("*.tmp"))
    err = call(*words(line, "new.html" if suffix != ".html" else "new.pdf")).refused
    assert "; a file that ends in " in err
    os.mkfifo(here / f"pipe{suffix}")
    code, _, err = call(*words(line, f"pipe{suffix}"))
    (here / f"pipe{suffix}").unlink()
    assert (code, err.partition(" is not a ")[2]) == (2, "regular file; --overwrite writes into it\n")


@pytest.mark.parametrize("case", [pytest.param(case, id=" ".join(case)) for case in FOLDERS])
def test_a_folder(case: tuple[str, str], here: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    line, name = FOLDERS[case]
    own = here / "folder" / name.replace("ID", Path("id").read_text())
    for taken in (".fedray/cells", "mlartifacts/x"):
        before = sorted((here / ".fedray").rglob("*"))
        assert "choose another name" in call(*words(line, taken), "--overwrite").refused
        assert sorted((here / ".fedray").rglob("*")) == before
    own.parent.mkdir(exist_ok=True)
    own.write_text("old")
    with monkeypatch.context() as patch:
        refuse_disk(patch)
        assert (call(*words(line, "folder")).code, own.read_text()) == (2, "old")
    assert "found name.pdf; a folder is required, for files such as " in call(*words(line, "name.pdf")).refused
    assert list(here.glob("name.pdf*")) == []
    assert call(*words(line, "folder")).code == 0
    assert own.read_bytes() != b"old"


def test_what_a_command_reads_stays(here: Path, call: Call) -> None:
    """The configuration, and a file that it names; another value may be the name of a folder."""
    fedray.simulate(RUN, progress=False).save(here / "init.safetensors")
    model = {"name": "mlp", "hidden": [4], "init": "init.safetensors"}
    (here / "init.yaml").write_text(yaml.safe_dump(RUN | {"model": model}))
    held = {name: (here / name).read_bytes() for name in ("run.yaml", "init.safetensors")}
    for line in ("run run.yaml --save run.yaml --overwrite", "run init.yaml --no-track --save ./init.safetensors"):
        assert "is read or written by this command; choose another name" in call(*line.split()).refused
    for _ in range(2):
        assert call(*["run", "run.yaml", "--no-track", "--save", "mlp/model.safetensors"]).code == 0
    assert held == {name: (here / name).read_bytes() for name in held}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDRAY_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*arguments: str) -> str:
    """Return the output; a UserError is raised, as the main program expects it."""
    result = CliRunner().invoke(data_app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_show_writes_the_picture_and_the_numbers(root: Path) -> None:
    """1,437 training samples; one shard each, cut by class: every client has one class, so distances are 0 or 1. 20
    clients, 2 per class: 20 · 18 / 2 = 180 of 190 pairs are of different classes, 180/190 = 0.947."""
    one_class = ("--partition", "sharding", "--set", "partition.shards=1", "--set", "partition.sizes=by_class")
    out = call("show", "digits", *one_class, "--clients", "20", "--out", "a.png")
    assert (root / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "1437 samples, 20 clients (0 empty), 1.00 of 10 classes per client" in out
    assert "total-variation distance 0.947" in out
    mixed = ("--set", "partition.alpha=0.1", "--set", "partition.min_size=2")
    call("show", "digits", *mixed, "--clients", "20", "--seed", "1")
    assert (root / "digits_dirichlet_20.png").exists()


def test_check_compares_with_what_is_published_and_knows_what_options_change(root: Path) -> None:
    assert "as published" in call("check", "digits")
    files.mnist(root)
    with pytest.raises(UserError, match="mnist is not as published: training samples: found 60, published 60000"):
        call("check", "mnist")
    files.mnist(root, train_y=files.np.arange(60) % 9, t10k_y=files.np.arange(20) % 9)
    with pytest.raises(UserError, match="classes: found 9, published 10"):
        call("check", "mnist")
    # 20 % of EMNIST, MedMNIST with and without val, CINIC-10 with valid: 697,932 / 5, 89,996 + 10,004, 180,000.
    for value, train in (
        ({"name": "emnist", "fraction": 0.2}, 139_586),
        ({"name": "pathmnist", "validation_images": "unused"}, 89_996),
        ({"name": "cinic10", "validation_images": "train"}, 180_000),
    ):
        expected = make_data_source(value).get_expected()
        assert expected is not None
        assert expected.train == train


def test_check_counts_clients_and_names_what_is_unread_or_twice(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Only 2 of the ids 0, 1, 2 occurs among the test samples."""
    x, y = np.zeros((6, 2), np.float32), np.arange(6) % 2
    clients = {"client_train": np.arange(6) % 3, "client_test": np.arange(6) + 2}
    np.savez("own.npz", x_train=x, y_train=y, x_test=x, y_test=y, **clients)
    assert ", 3 natural clients, 1 with test samples\n" in call("check", "npz", "--set", "data.path=own.npz")
    # The second sample is in both sets; no sample has the labels 0 and 2.
    x = np.eye(3, dtype=np.float32)
    arrays = {"x_train": x, "y_train": np.array([1, 3, 4]), "x_test": np.stack([x[1], 2 * x[0]])}
    arrays["y_test"] = np.array([3, 1])
    np.savez(root / "own.npz", **arrays, x_valid=x, X_train=x)
    out = call("check", "npz", "--set", "data.path=own.npz")
    assert "warning: nothing reads the arrays 'X_train', 'x_valid' of own.npz\n" in out
    assert "data: 1 test samples repeat the inputs of others;" in caplog.text
    assert "data: 2 of 5 outputs of the model have no training sample: 0, 2" in caplog.text


def test_fetch_goes_through_torchvision(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    class Downloads:
        def __init__(self, folder: str, download: bool, **arguments: Any) -> None:
            asked.append((folder, download, arguments))

    monkeypatch.setattr(torchvision.datasets, "SVHN", Downloads)
    assert f"svhn: in {root}" in call("fetch", "svhn")
    assert asked == [(str(root), True, {"split": "train"}), (str(root), True, {"split": "test"})]


@pytest.mark.parametrize("name", ["mnist", "pathmnist", "ag_news"])
def test_fetch_without_network_says_what_to_put_where(root: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(urllib.request, "urlopen", Mock(side_effect=urllib.error.URLError("no network")))
    with pytest.raises(UserError, match=rf"data\.name: {name} could not be downloaded .*; put .* in {root}") as error:
        call("fetch", name)
    assert "\n" not in str(error.value)
    assert not [path for path in root.rglob("*") if path.is_file()]


IMAGES, PIXELS = np.zeros((12, 3, 8, 8)), "values are those of pixels, 0 to "
DOUBTS: dict[str, tuple[np.ndarray, list[str]]] = {
    "nothing": (IMAGES, []),
    "channels last": (np.zeros((12, 8, 9, 3)), ["samples have shape (8, 9, 3): channels come last;"]),
    "images of floats to 255": (IMAGES + 254, [f"{PIXELS}254: float32 is used as it is; save uint8, or divide by 255"]),
    "rows of pixels": (np.eye(12, 4) * 255, [f"{PIXELS}255: float32 is used as it is;"]),
    "rows of other numbers": (np.eye(12, 4) * 254.5, []),
    "test inputs 11 times as large": (
        np.full((12, 4), 0.5),
        ["mean absolute values are 0.5 in x_train and 5.5 in x_t"],
    ),
}


@pytest.mark.parametrize("case", DOUBTS)
def test_check_doubts_arrays_of_ones_own(root: Path, case: str) -> None:
    (x, expected), y = DOUBTS[case], np.arange(12) % 3
    x = x.astype(np.float32)
    np.savez(root / "own.npz", x_train=x, y_train=y, x_test=11 * x if "11" in case else x, y_test=y)
    out = call("check", "npz", "--set", "data.path=own.npz").splitlines()
    found = [line for line in out if line.startswith("warning: ")]
    assert len(found) == len(expected)
    assert all(line.startswith(f"warning: {words}") for line, words in zip(found, expected, strict=True))
