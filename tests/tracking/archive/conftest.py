"""An exported archive, and a store that must stay empty."""

import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient

from fedray.tracking.archive.pack import export_sweep
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import history, write
from tests.tracking.archive.tricks import CELL, Members


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Members:
    """A deposit as `export` writes it: a sweep of one cell, which has finished, its file, and members for readers."""
    folder = tmp_path_factory.mktemp("exported")
    (folder / "mlflow.db").write_bytes(empty_store.read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
        write(Tracker(), [CELL], [history(60, 70)])
        Tracker().open_sweep("sweep", "", [CELL], file="name: sweep\n")
        export_sweep("sweep", folder / "sweep.zip", {"README.md": b"read", "tables/a.md": b"one"})
    with zipfile.ZipFile(folder / "sweep.zip") as archive:
        return [(member, archive.read(member)) for member in archive.infolist()]


@pytest.fixture
def store(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with an empty store, which is still empty afterwards, and nothing but an archive has come into being."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "mlflow.db").write_bytes(empty_store.read_bytes())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'store' / 'mlflow.db'}")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        "evil.zip",
        "store",
        "store/mlflow.db",
    ]
    assert MlflowClient().get_experiment_by_name("fedray") is None
