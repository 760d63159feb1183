"""A real MLflow store for tests to write runs into."""

import shutil
from pathlib import Path

import pytest

from fedray.tracking.tracker import Tracker


@pytest.fixture
def store(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Tracker:
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    return Tracker()
