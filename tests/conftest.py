"""What all tests share: one thread per process, and the place of real data, if there is any."""

import os
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)  # results depend on it, and the suite's processes share few cores


def shared_data(name: str) -> Path:
    """A file of real data, from $FEDRAY_TEST_DATA or ../shared/data beside the repository; skips where it is absent."""
    default = Path(__file__).parent.parent.parent / "shared" / "data"
    path = Path(os.environ.get("FEDRAY_TEST_DATA", default)) / name
    if not path.exists():
        pytest.skip(f"real data not present: {name} (set FEDRAY_TEST_DATA)")
    return path


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow's database without runs; making one takes seconds, copying it none."""
    from mlflow import MlflowClient

    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture(autouse=True)
def _alike() -> None:
    """Each test begins with one thread and the same PyTorch generator: the same bits in any order of the tests."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
