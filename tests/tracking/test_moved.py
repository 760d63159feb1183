"""A project that moved: its store names files where they were. And a store that names files which are not its own."""

import json
import os
import shutil
import sqlite3
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from mlflow import MlflowClient

import fedray
from fedray.config import RunConfig
from fedray.tracking.sqlite_store import ADDRESSES
from fedray.tracking.tracker import Tracker
from tests import small
from tests.analysis.runs import sheet
from tests.conftest import Call
from tests.tracking.test_foreign_stores import go

SWEEP: dict[str, Any] = {
    "name": "moves",
    "base": small.sections(model=4, training={"rounds": 2, "local_epochs": 1}),
    "grid": {"seed": [0, 1]},
}
READERS = (
    "status moves", "tables moves", "report moves", "compare moves --reference fedavg",
    "figures moves --kind curves", "verify moves --cells 1", "export moves", "clean",
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    """A project of one finished cell, in a folder whose name an address quotes."""
    folder = tmp_path_factory.mktemp("projects") / "a b"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        go(patch, folder)
        shutil.copy(empty_store, folder)
        (folder / "sweep.yaml").write_text(yaml.safe_dump(SWEEP))
        configs = [RunConfig.parse(SWEEP["base"] | {"seed": seed}) for seed in (0, 1)]
        fedray.simulate(configs[0], track="fedavg iid s0", progress=False)
        digest = configs[0].data.load().digest
        cells = [small.list_cell(config, digest, f"fedavg iid s{config.seed}") for config in configs]
        Tracker().open_sweep(sheet("moves", cells, file=(folder / "sweep.yaml").read_text()))
    return folder


@pytest.fixture
def moved(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project in another folder; nothing is where it was."""
    shutil.copytree(made, tmp_path / "c")
    made.rename(made.with_name("away"))
    go(monkeypatch, tmp_path / "c")
    yield tmp_path / "c"  # type: ignore[misc]
    assert not list(made.rglob("*")), "nothing is written to the old place"
    shutil.rmtree(made, ignore_errors=True)
    made.with_name("away").rename(made)


def list_addresses(store: Path) -> set[str]:
    with sqlite3.connect(store) as db:
        found = {str(row[0]) for table, column in ADDRESSES for row in db.execute(f"SELECT {column} FROM {table}")}  # noqa: S608
    db.close()
    return {one.partition("/mlartifacts")[0] for one in found if "mlartifacts" in one}


def test_every_reader_finds_the_files(moved: Path, call: Call) -> None:
    """Without a write, as on a disk that can only be read."""
    before = list_addresses(moved / "mlflow.db")
    for line in READERS:
        code, _, err = call(*line.split())
        assert (code, err) == (0, ""), line
    assert sorted(fedray.results("moves").cells["status"]) == ["finished", "missing"]
    assert list_addresses(moved / "mlflow.db") == before != {moved.as_uri()}


def test_the_first_write_names_the_new_place(moved: Path, call: Call, caplog: pytest.LogCaptureFixture) -> None:
    """MLflow's own client, and with it its UI, then shows the files; the other cell is run there."""
    assert call("run", "sweep.yaml", "--cell", "2").code == 0
    assert f"{moved / 'mlflow.db'} has moved: it now names its files where they are, no longer in " in caplog.text
    caplog.clear()
    assert list_addresses(moved / "mlflow.db") == {moved.as_uri()}
    client = MlflowClient(tracking_uri=f"sqlite:///{moved / 'mlflow.db'}")
    for run in client.search_runs([client.get_experiment_by_name("fedray").experiment_id]):
        assert client.list_artifacts(run.info.run_id)
    assert "2 finished" in call("status", "moves").out
    assert "has moved" not in caplog.text


def test_a_copy_has_files_of_its_own(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    """The original is still there, and keeps its addresses."""
    shutil.copytree(made, tmp_path / "copy")
    go(monkeypatch, tmp_path / "copy")
    for path in (tmp_path / "copy" / "mlartifacts").rglob("cells.json"):
        path.write_text(path.read_text().replace("fedavg iid", "copied iid"))
    assert "copied iid" in call("status", "moves", "--all").out
    assert call("rm", "moves", "--cell", "2", "--yes").code == 0
    assert list_addresses(tmp_path / "copy" / "mlflow.db") == {(tmp_path / "copy").as_uri()}
    assert list_addresses(made / "mlflow.db") == {made.as_uri()}


OUTSIDE = "root:x:0:0"


@pytest.mark.parametrize("address", ["file:///etc", "s3://bucket/run", "file://host/run", "link", "pipe"])
@pytest.mark.parametrize("whose", ["sweep", "cell"])
def test_files_of_others_are_refused(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call, address: str, whose: str
) -> None:
    """A store from a stranger: nothing that lies outside of its folder goes into an archive or a page."""
    shutil.copytree(made, tmp_path / "c")
    go(monkeypatch, tmp_path / "c")
    (tmp_path / "passwd").write_text(OUTSIDE)
    with sqlite3.connect("mlflow.db") as db:
        tag = f"(SELECT run_uuid FROM tags WHERE key = 'fedray.kind' AND value = '{whose}')"  # noqa: S608
        ids = [row[0] for row in db.execute(f"SELECT run_uuid FROM runs WHERE run_uuid IN {tag}")]  # noqa: S608
        if address not in ("link", "pipe"):
            db.execute(f"UPDATE runs SET artifact_uri = ? WHERE run_uuid IN {tag}", [address])  # noqa: S608
    db.close()
    for one in ids if address in ("link", "pipe") else ():
        file = Path("mlartifacts", one, "artifacts", "cells.json" if whose == "sweep" else "config.yaml")
        file.unlink()
        file.symlink_to(tmp_path / "passwd") if address == "link" else os.mkfifo(file)
    for line in ("export moves", "report moves", "verify moves --cells 1"):
        code, _, err = call(*line.split())
        assert code == 2 or (line[:6] in ("report", "verify") and whose == "cell"), line
        assert err.count("\n") == (code == 2)
        assert "Traceback" not in err
    assert not list(Path().glob("*.zip"))
    assert not any(OUTSIDE in path.read_text() for path in Path().glob("*.html"))
    with sqlite3.connect("mlflow.db") as db:
        found = db.execute("SELECT count(*) FROM runs").fetchone()[0]
    db.close()
    assert found == 2, "runs of the sweep and the cell"


def test_a_link_to_another_disk_is_followed(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    """A folder of artefacts on another disk, behind a link, is the store's own."""
    shutil.copytree(made, tmp_path / "c")
    (tmp_path / "c" / "mlartifacts").rename(tmp_path / "disk")
    (tmp_path / "c" / "mlartifacts").symlink_to(tmp_path / "disk")
    go(monkeypatch, tmp_path / "c")
    assert call("export", "moves").code == 0
    with zipfile.ZipFile("moves.zip") as archive:
        assert json.loads(archive.read("sweep.json"))["name"] == "moves"
        assert any(name.endswith("config.yaml") for name in archive.namelist())
