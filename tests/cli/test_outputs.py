"""Every path that a command writes to: what fedray did not write is not replaced, and a full disk leaves the old file.

A new option that takes a path fails here until it is in `FILES`, `FOLDERS` or `READ`.
"""

import errno
import importlib
import inspect
import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import yaml
from typer.testing import CliRunner

import fedray
from fedray.cli.main import LAZY, app
from fedray.config import RunConfig
from fedray.sweep.sweep import Sweep
from fedray.tracking.tracker import Tracker
from tests import small
from tests.analysis.runs import sheet
from tests.conftest import Call

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
    ("data show", "out"): ("data show digits --alpha 1 --clients 5 --out OUT", ".png"),
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
        patch.chdir(folder)
        for name in ("MLFLOW_TRACKING_URI", "FEDRAY_STORAGE"):
            patch.delenv(name, raising=False)
        (folder / "mlflow.db").write_bytes(empty_store.read_bytes())
        configs = [RunConfig.parse(RUN | {"seed": seed}) for seed in (0, 1)]
        digest = configs[0].data.load().digest
        fedray.simulate(configs[1], track="s1", progress=False)
        sweep = Sweep.parse({"name": "some/sweep", "base": RUN, "grid": {"seed": [0, 1]}})
        cells = [small.list_cell(config, digest) for config in configs]
        Tracker().open_sweep(sheet("some/sweep", cells, description="Two seeds.", file=sweep.to_yaml()))
        cases = [{"algorithm": "fedavg"}, {"algorithm": "scaffold"}]
        sweep_file = {"name": "cased", "base": RUN, "cases": cases}
        personal = RUN | {"algorithm": "ditto"}
        for name, content in (("run", RUN), ("personal", personal), ("cases", sweep_file)):
            (folder / f"{name}.yaml").write_text(yaml.safe_dump(content))
        shown = CliRunner().invoke(app, ["run", "run.yaml", "--json"]).output  # it leaves a checkpoint
        (folder / "id").write_text(json.loads(shown.splitlines()[-1])["run_id"])
    return folder


@pytest.fixture
def here(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(made)
    for name in ("MLFLOW_TRACKING_URI", "FEDRAY_STORAGE"):
        monkeypatch.delenv(name, raising=False)
    return made


def words(call: str, out: str) -> list[str]:
    return [out if word == "OUT" else Path("id").read_text() if word == "ID" else word for word in call.split()]


def refuse_disk(patch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    patch.setattr("fedray.common.whole_files.os.fsync", fail)
    patch.setattr(zipfile.ZipFile, "writestr", fail)  # of an archive, which is not written at once


@pytest.mark.parametrize("case", [pytest.param(case, id=" ".join(case)) for case in {**FILES, **PICTURE_ONLY}])
def test_a_file(case: tuple[str, str], here: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    line, suffix = (FILES | PICTURE_ONLY)[case]
    store, stranger, own = (here / "mlflow.db").read_bytes(), here / "notes.txt", here / f"own{suffix}"
    (here / "link").unlink(missing_ok=True)
    (here / "link").symlink_to("mlflow.db")
    for taken in ("mlflow.db", "link", f".fedray/cells/own{suffix}", f"mlartifacts/x/own{suffix}"):
        code, _, err = call(*words(line, taken), "--overwrite")
        assert code == 2
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
        code, _, err = call(*words(line, own.name))
        assert (code, own.read_text()) == (2, "old")
        assert "No space left on device" in err
    assert call(*words(line, own.name)).code == 0
    assert own.read_bytes() != b"old"
    assert not list(here.glob("*.tmp"))
    code, _, err = call(*words(line, "new.html" if suffix != ".html" else "new.pdf"))
    assert code == 2
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
        code, _, err = call(*words(line, taken), "--overwrite")
        assert (code, sorted((here / ".fedray").rglob("*"))) == (2, before)
        assert "choose another name" in err
    own.parent.mkdir(exist_ok=True)
    own.write_text("old")
    with monkeypatch.context() as patch:
        refuse_disk(patch)
        assert call(*words(line, "folder")).code == 2
        assert own.read_text() == "old"
    code, _, err = call(*words(line, "name.pdf"))
    assert (code, list(here.glob("name.pdf*"))) == (2, [])
    assert "found name.pdf; a folder is required, for files such as " in err
    assert call(*words(line, "folder")).code == 0
    assert own.read_bytes() != b"old"


def test_what_a_command_reads_stays(here: Path, call: Call) -> None:
    """The configuration, and a file that it names."""
    result = fedray.simulate(RUN, progress=False)
    result.save(here / "init.safetensors")
    (here / "init.yaml").write_text(
        yaml.safe_dump(RUN | {"model": {"name": "mlp", "hidden": [4], "init": "init.safetensors"}})
    )
    held = {name: (here / name).read_bytes() for name in ("run.yaml", "init.safetensors")}
    for line in ("run run.yaml --save run.yaml --overwrite", "run init.yaml --no-track --save ./init.safetensors"):
        code, _, err = call(*line.split())
        assert code == 2, line
        assert "is read or written by this command; choose another name" in err
    assert held == {name: (here / name).read_bytes() for name in held}
