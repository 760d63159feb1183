"""Stores that others have written to: noise, other versions of MLflow, other programs; no right or room to write; a
project that moved, whose store names files where they were, and a store that names files which are not its own."""

import contextlib
import ctypes
import json
import os
import resource
import shutil
import sqlite3
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from mlflow import MlflowClient

import fedray
from fedray.cells.sheet import Sheet
from fedray.common.errors import UserError
from fedray.common.location import use_sqlite
from fedray.config import RunConfig
from fedray.sweep.storage import lock_sweep
from fedray.tracking.sqlite_store import ADDRESSES, SqliteClient
from fedray.tracking.store import count_unlisted, find_runs, find_unlisted, open_reader, open_store, read_stored_sweep
from fedray.tracking.tracker import Tracker
from tests import small
from tests.analysis.runs import sheet
from tests.conftest import Call, Called, work_in
from tests.sweep.running import REPOSITORY, SWEEP

SMALL = small.sections(model=4, training={"rounds": 2, "local_epochs": 1})
ARCHIVE = REPOSITORY / "results/mnist_causes.zip"
READERS = (
    "status", "status sweep --all", "status sweep --json", "tables sweep", "tables sweep --json", "export sweep",
    "clean",
)  # fmt: skip
MORE = ("figures sweep --kind curves", "report sweep", "compare sweep --reference fedavg")
"""They read by the same functions, and take seconds."""
NOISE = {
    "a sweep without a name": "DELETE FROM tags WHERE key = 'fedray.sweep'",
    "runs of odd cells": "UPDATE tags SET value = '../../x' WHERE key = 'fedray.cell'",
    "no times": "UPDATE runs SET start_time = NULL, end_time = NULL",
    "a start of no calendar": "UPDATE runs SET start_time = 9000000000000000000",
    "text for a time": "UPDATE runs SET start_time = 'yesterday'",
    "a value of 1e308": "UPDATE {metrics} SET value = 1e308",
    "text for a value": "UPDATE {metrics} SET value = 'high'",
    "text that is not UTF-8": "UPDATE tags SET value = CAST(x'ff80' AS TEXT) WHERE key = 'fedray.status'",
    "control characters": "UPDATE tags SET value = char(27) || '[31m' || value WHERE key = 'fedray.status'",
    "no table of tags": "DROP TABLE tags",
}
OF_GONE = "SELECT 'fedray.sweep', 'gone', run_uuid FROM tags WHERE key = 'fedray.cell'"
ARTEFACTS = {"not JSON": b"{", "other keys": b'{"cells": [{}]}', "gone": None}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    """A folder with a sweep of two finished cells in its store."""
    folder = tmp_path_factory.mktemp("made")
    configs = [RunConfig.parse(SMALL | {"seed": seed}) for seed in (0, 1)]
    with pytest.MonkeyPatch.context() as patch:
        work_in(folder, patch, empty_store)
        digest = configs[0].data.load().digest
        cells = [small.list_cell(config, digest, f"fedavg iid s{config.seed}") for config in configs]
        for config, cell in zip(configs, cells, strict=True):
            fedray.simulate(config, track=cell["label"], progress=False)
        tracker = Tracker()
        tracker.open_sweep(sheet("sweep", cells, file=yaml.safe_dump({"name": "sweep", "base": SMALL})))
        tracker.open_sweep(sheet("other", cells[:1]))
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, which is the working folder."""
    folder = work_in(shutil.copytree(made, tmp_path / "copy"), monkeypatch)
    SqliteClient(folder / "mlflow.db").follow_move()
    return folder


def change(*statements: str) -> None:
    with sqlite3.connect("mlflow.db") as database:
        for one in statements:
            database.execute(one)
    database.close()


def read(call: Call, readers: tuple[str, ...] = READERS) -> None:
    """Call readers: none ends in a traceback, refuses in more than a line, or writes to the store."""
    before = Path("mlflow.db").read_bytes()
    for line in readers:
        code, out, err = call(*line.split())
        assert "Traceback" not in out + err, line
        assert code in (0, 1, 2), line
        assert sum(one.startswith("fedray: ") for one in err.splitlines()) == (code == 2), (line, err)
        assert "\x1b" not in out + err, line
        assert all(len(one) <= 500 for one in err.splitlines()), (line, err)
    assert Path("mlflow.db").read_bytes() == before


@pytest.mark.parametrize("noise", NOISE)
def test_noise_is_a_line_and_nothing_is_lost(folder: Path, call: Call, noise: str) -> None:
    change(*{NOISE[noise].format(metrics=table) for table in ("metrics", "latest_metrics")})
    read(call, READERS + MORE if "times" in noise or "value" in noise else READERS)
    code, out, err = call("rm", "sweep", "--yes")
    assert "Traceback" not in out + err
    assert code in (0, 2), err


@pytest.mark.parametrize("content", ARTEFACTS)
def test_a_bad_list_of_cells_is_named(folder: Path, call: Call, content: str, caplog: pytest.LogCaptureFixture) -> None:
    (file,) = [one for one in Path("mlartifacts").rglob("cells.json") if one.read_bytes().count(b'"hash"') == 2]
    file.unlink()
    if (new := ARTEFACTS[content]) is not None:
        file.write_bytes(new)
    read(call)
    assert "other" in call("status").out
    assert "lists no cells; run it again" in call("status", "sweep").err
    assert call("status", "other").code == 0
    if new is not None:
        run = file.parts[-3]
        assert f"run {run}: its artefact cells.json is damaged and left out; run its sweep again" in caplog.text
    change(f"INSERT INTO tags (key, value, run_uuid) {OF_GONE}")
    assert len(find_unlisted(*open_reader(), Sheet("gone"))) == 1, "the other one is listed by `other`"


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", b"\xff\xfe\x00", b'config/cell,"x\n'])
def test_a_damaged_table_of_trials_is_left_out(folder: Path, content: bytes) -> None:
    (file,) = [one for one in Path("mlartifacts").rglob("cells.json") if one.read_bytes().count(b'"hash"') == 2]
    file.with_name("trials.csv").write_bytes(content)
    found = fedray.results("sweep")
    assert found.trials.empty
    assert len(found.cells) == 2


@pytest.mark.parametrize("damaged", [True, False])
def test_nothing_is_deleted_by_a_list_that_cannot_be_read(folder: Path, call: Call, damaged: bool) -> None:
    """`other` lists a cell of `sweep`. A folder in a file's place is there and cannot be read."""
    assert "1 cell in other.zip" in call("export", "other").done
    (file,) = [one for one in Path("mlartifacts").rglob("cells.json") if one.read_bytes().count(b'"hash"') == 1]
    file.unlink()
    file.write_bytes(b"{") if damaged else file.mkdir()
    change(f"INSERT INTO tags (key, value, run_uuid) {OF_GONE}")
    before = Path("mlflow.db").read_bytes()
    said = "artefact cells.json is damaged; run" if damaged else "file cells.json cannot be read from sqlite:///"
    with lock_sweep("other"):
        for line in ("rm sweep --yes", "rm other --unlisted --yes", "import other.zip", "clean --yes"):
            assert f"run {file.parts[-3]}: its {said}" in call(*line.split()).refused, line
    assert Path("mlflow.db").read_bytes() == before
    assert call("tables", "sweep").code == count_unlisted(Sheet("gone")) == 0, "its own list is whole"


def test_a_file_of_a_run_that_cannot_be_read_is_a_line_and_no_run_less(folder: Path, call: Call) -> None:
    file, *_ = Path("mlartifacts").rglob("confusion.csv")
    file.unlink()
    file.mkdir()
    said = f"run {file.parts[-3]}: its file confusion.csv cannot be read from sqlite:///{folder}"
    assert said in call("figures", "sweep", "--kind", "confusion").refused


def test_a_transaction_that_a_killed_process_left_is_named(tmp_path: Path) -> None:
    (tmp_path / "a-journal").touch()
    with pytest.raises(UserError, match=f"a killed process left {tmp_path}/a-journal"), use_sqlite(tmp_path / "a"):
        raise sqlite3.OperationalError("attempt to write a readonly database")


# Other versions of MLflow, and other programs


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store as an older MLflow made it: its tables up to the fourth change from the end, and the experiment."""
    from alembic import command
    from alembic.script import ScriptDirectory
    from mlflow.store.db.utils import _get_alembic_config, create_sqlalchemy_engine
    from mlflow.store.tracking.dbmodels.initial_models import Base

    path = tmp_path_factory.mktemp("older") / "mlflow.db"
    engine = create_sqlalchemy_engine(f"sqlite:///{path}")
    Base.metadata.create_all(engine)
    config = _get_alembic_config(f"sqlite:///{path}")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, list(ScriptDirectory.from_config(config).walk_revisions())[3].revision)
    engine.dispose()
    with sqlite3.connect(path) as database:
        insert = "INSERT INTO experiments (name, artifact_location, lifecycle_stage) VALUES ('fedray', ?, 'active')"
        database.execute(insert, [(path.parent / "mlartifacts").as_uri()])
    database.close()
    return path


WRITERS = ("sweep sweep.yaml", "run sweep.yaml --cell 1", "rm sweep --yes", f"import {ARCHIVE}", "ui")


def refused(call: Call, said: str, readable: bool = True) -> str:
    """Call every writer, which refuses in a line before it changes anything. Returns the line."""
    before = Path("mlflow.db").read_bytes()
    Path("sweep.yaml").write_text(yaml.safe_dump(SWEEP))
    for line in WRITERS:
        code, out, err = call(*line.split())
        assert (code, err.count("\n")) == (2, 1), (line, out, err)
        assert said in err, line
        assert Path("mlflow.db").read_bytes() == before, line
    assert (call("status").code == 0) == readable
    assert Path("mlflow.db").read_bytes() == before
    assert not any(Path(name).exists() for name in ("mlartifacts", ".fedray/cells"))
    return str(err)


def test_the_printed_command_upgrades(tmp_path: Path, older: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow itself would upgrade the tables of an older one unasked, under a sweep of that one."""
    (tmp_path / "a b").mkdir()
    work_in(tmp_path / "a b", monkeypatch, older)
    command = refused(call, "has the tables of an older MLflow than MLflow ").split("`")[1]
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(["/bin/bash", "-c", command], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "rm: 'sweep' is neither a sweep nor the id of a run" in call("rm", "sweep", "--yes").err
    shutil.copy(older, "mlflow.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite+pysqlite:///{Path('mlflow.db').absolute()}")
    found = call("rm", "sweep", "--yes").err
    assert "has the tables of an older MLflow" in found, "a database's address, as PostgreSQL's"
    assert "copy the store, and `mlflow db upgrade $MLFLOW_TRACKING_URI`" in found


def test_the_older_side_is_told_what_helps(project: Path, call: Call) -> None:
    """MLflow advises `mlflow db upgrade`, which fails there."""
    change("UPDATE alembic_version SET version_num = 'ffffffffffff'")
    line = refused(call, "was upgraded by a newer MLflow than MLflow ", readable=False)
    assert "`pip install -U mlflow` here helps, `mlflow db upgrade` does not; or use the copy" in line


def test_another_programs_database_gets_no_tables(tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Optuna's, which names a revision in a table of the same name: MLflow would add 60 tables of its own."""
    work_in(tmp_path, monkeypatch)
    change("CREATE TABLE studies (id INTEGER)", "CREATE TABLE alembic_version (version_num TEXT)")
    change("INSERT INTO alembic_version VALUES ('v3.0.0.d')")
    refused(call, "is the database of another program: it has a table 'studies'", readable=False)


# Neither right nor room to write


def _keep_to_permissions() -> None:
    """Let permissions bind root, too: without CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""
    for capability in (1, 2):
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP; a user has none of them


def _limit_files() -> None:
    size = Path("mlflow.db").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))  # the store cannot grow


CALLS = """
import contextlib, io, json, logging, sys
from fedray.cli.main import main
for line in sys.argv[1:]:
    logging.root.handlers.clear()
    sys.argv[1:], out, err = line.split(), io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""


def call_limited(limit: Callable[[], None], *lines: str) -> list[Called]:
    """Call `fedray` with each of the lines, in one process of its own with a limit."""
    words = [sys.executable, "-P", "-c", CALLS, *lines]
    done = subprocess.run(words, capture_output=True, text=True, preexec_fn=limit, timeout=300)
    return [Called(*json.loads(line)) for line in done.stdout.splitlines()]


def test_a_store_that_can_only_be_read(folder: Path) -> None:
    """The message of MLflow, `attempt to write a readonly database`, comes with two tracebacks. Readers also look who
    runs what in a storage that can only be read: nobody runs the cell that its run says is running."""
    writable, storage, cell = folder.stat().st_mode, folder / ".fedray", min(read_stored_sweep("sweep").cells)
    (run,) = find_runs(*open_reader(), [cell])
    open_store()[0].set_tag(run.info.run_id, "fedray.status", "running")
    for name in ("locks/.cells", "locks/sweep", f"cells/{cell}/checkpoint-1.json"):
        (storage / name).parent.mkdir(parents=True, exist_ok=True)
        (storage / name).touch()
    closed = [folder / "mlflow.db", *storage.rglob("*"), storage, folder]
    for path in closed:
        path.chmod(stat.S_IRUSR | (stat.S_IXUSR if path.is_dir() else 0))
    try:
        lines = ("rm sweep --yes", f"import {ARCHIVE}", "ui", "status", "tables sweep")
        *refused, shown, table = call_limited(_keep_to_permissions, *lines)
    finally:
        for path in reversed(closed):
            path.chmod(writable)
    assert (table.code, table.err) == (0, "")
    said = f"cannot write {folder / 'mlflow.db'}: Permission denied; set it to a store that can be written"
    assert refused == [(2, "", f"fedray: MLFLOW_TRACKING_URI: {said}\n")] * 3
    assert (shown.code, shown.err) == (0, "")
    assert "1 finished, 1 interrupted" in shown.out


def test_a_full_disk(folder: Path, call: Call) -> None:
    """What was there stays; once there is room, the same command does its work."""
    with contextlib.closing(sqlite3.connect("mlflow.db")) as database:
        database.execute("VACUUM")  # no free pages
    taken, shown, removed = call_limited(_limit_files, f"import {ARCHIVE}", "status sweep", "rm sweep --yes")
    assert taken.code == 2
    assert "what it has taken stays, and the same command completes it" in taken.err
    assert "2 finished" in shown.out
    assert removed.code in (0, 2), "a deletion may fit into the pages that are there"
    for done in (taken, removed):
        assert (done.err.count("\n"), "Traceback" in done.err) == (int(done.code == 2), False), done.err
    assert call("import", str(ARCHIVE)).out.startswith("fedsol/mnist_causes: ")
    assert "fedsol/mnist_causes: 6 cells, 6 finished" in call("status", "fedsol/mnist_causes").out


MOVING: dict[str, Any] = {"name": "moves", "base": SMALL, "grid": {"seed": [0, 1]}}
MOVED_READERS = (
    "status moves", "tables moves", "report moves", "compare moves --reference fedavg",
    "figures moves --kind curves", "verify moves --cells 1", "export moves", "clean",
)  # fmt: skip


@pytest.fixture(scope="module")
def project_made(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    """A project of one finished cell, in a folder whose name an address quotes."""
    folder = tmp_path_factory.mktemp("projects") / "a b"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        work_in(folder, patch, empty_store)
        (folder / "sweep.yaml").write_text(yaml.safe_dump(MOVING))
        configs = [RunConfig.parse(MOVING["base"] | {"seed": seed}) for seed in (0, 1)]
        fedray.simulate(configs[0], track="fedavg iid s0", progress=False)
        digest = configs[0].data.load().digest
        cells = [small.list_cell(config, digest, f"fedavg iid s{config.seed}") for config in configs]
        Tracker().open_sweep(sheet("moves", cells, file=(folder / "sweep.yaml").read_text()))
    return folder


@pytest.fixture
def moved(project_made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project in another folder; nothing is where it was."""
    folder = shutil.copytree(project_made, tmp_path / "c")
    project_made.rename(project_made.with_name("away"))
    yield work_in(folder, monkeypatch)  # type: ignore[misc]
    assert not list(project_made.rglob("*")), "nothing is written to the old place"
    shutil.rmtree(project_made, ignore_errors=True)
    project_made.with_name("away").rename(project_made)


def list_addresses(store: Path) -> set[str]:
    with contextlib.closing(sqlite3.connect(store)) as db:
        found = {str(row[0]) for table, column in ADDRESSES for row in db.execute(f"SELECT {column} FROM {table}")}  # noqa: S608
    return {one.partition("/mlartifacts")[0] for one in found if "mlartifacts" in one}


def test_every_reader_finds_the_files(moved: Path, call: Call) -> None:
    """Without a write, as on a disk that can only be read."""
    before = list_addresses(moved / "mlflow.db")
    for line in MOVED_READERS:
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


@pytest.fixture
def copied(project_made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the project, which is still there, as the working folder."""
    return work_in(shutil.copytree(project_made, tmp_path / "c"), monkeypatch)


def test_a_copy_has_files_of_its_own(project_made: Path, copied: Path, call: Call) -> None:
    """The original keeps its addresses."""
    for path in (copied / "mlartifacts").rglob("cells.json"):
        path.write_text(path.read_text().replace("fedavg iid", "copied iid"))
    assert "copied iid" in call("status", "moves", "--all").out
    assert call("rm", "moves", "--cell", "2", "--yes").code == 0
    assert list_addresses(copied / "mlflow.db") == {copied.as_uri()}
    assert list_addresses(project_made / "mlflow.db") == {project_made.as_uri()}


OUTSIDE = "root:x:0:0"


@pytest.mark.parametrize("address", ["file:///etc", "s3://bucket/run", "file://host/run", "link", "pipe"])
@pytest.mark.parametrize("whose", ["sweep", "cell"])
def test_files_of_others_are_refused(copied: Path, tmp_path: Path, call: Call, address: str, whose: str) -> None:
    """A store from a stranger: nothing that lies outside of its folder goes into an archive or a page."""
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
    with contextlib.closing(sqlite3.connect("mlflow.db")) as db:
        found = db.execute("SELECT count(*) FROM runs").fetchone()[0]
    assert found == 2, "runs of the sweep and the cell"


def test_a_link_to_another_disk_is_followed(copied: Path, tmp_path: Path, call: Call) -> None:
    """A folder of artefacts on another disk, behind a link, is the store's own."""
    (copied / "mlartifacts").rename(tmp_path / "disk")
    (copied / "mlartifacts").symlink_to(tmp_path / "disk")
    assert call("export", "moves").code == 0
    with zipfile.ZipFile("moves.zip") as archive:
        assert json.loads(archive.read("sweep.json"))["name"] == "moves"
        assert any(name.endswith("config.yaml") for name in archive.namelist())
