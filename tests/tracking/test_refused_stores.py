"""Stores that cannot be used are refused in one line before anything is trained, without a part of a password."""

from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from fedray.common.errors import UserError
from fedray.sweep.storage import lock_sweep
from fedray.tracking import store
from fedray.tracking.store import find_runs, is_transient, open_reader, open_store
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import FEDAVG, cell, history, write
from tests.conftest import Call


@pytest.fixture
def client(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> MlflowClient:
    (tmp_path / "mlflow.db").write_bytes(empty_store.read_bytes())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    return MlflowClient()


@pytest.mark.parametrize("scheme", ["http", "https", "postgresql", "mysql+pymysql"])
@pytest.mark.parametrize("sign", ["/", "#", "?"])
def test_no_part_of_a_password_is_shown(scheme: str, sign: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser of addresses takes what stands before the sign for a port, and says it."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{scheme}://me:hunter2{sign}secret@127.0.0.1:1/db")
    with pytest.raises(UserError, match=r"whose host or port cannot be read; write / \? # of a password as") as caught:
        open_store()
    assert not [word for word in ("hunter2", "secret") if word in str(caught.value)]


@pytest.mark.parametrize("create", [False, True])
def test_an_experiment_that_was_deleted(client: MlflowClient, create: bool) -> None:
    number = client.create_experiment("fedray")
    client.delete_experiment(number)
    refusal = rf"'fedray' has been deleted in MLflow; `mlflow experiments restore --experiment-id {number}` restores it"
    with pytest.raises(UserError, match=refusal):
        open_store(create)
    with pytest.raises(UserError, match=refusal):
        open_reader()


@pytest.mark.parametrize(
    ("address", "module"),
    [("s3://bucket/a", "boto3"), ("gs://bucket/a", "google.cloud.storage"), ("hdfs://host/a", "pyarrow")],
)
def test_artefacts_that_need_a_library(
    address: str, module: str, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "find_spec", lambda name: None)
    client.create_experiment("fedray", address)
    for open_ in (open_store, open_reader):
        with pytest.raises(UserError, match=rf"are at {address}, which needs the module {module}; install it"):
            open_()


@pytest.mark.parametrize(
    ("said", "transient"),
    [
        ("(sqlite3.OperationalError) database is locked [SQL: INSERT]", True),
        ("(sqlite3.IntegrityError) UNIQUE constraint failed: tags.key [SQL: INSERT]", True),
        ("(sqlite3.OperationalError) no such table: runs", False),
    ],
)
def test_what_loses_a_race_is_tried_again(said: str, transient: bool) -> None:
    assert is_transient(MlflowException.invalid_parameter_value(said)) == transient


def test_rm_leaves_a_running_sweep_alone(client: MlflowClient, tmp_path: Path, call: Call) -> None:
    """By its name, and by a run of it."""
    one = cell(FEDAVG, 0.5, 0)
    write(Tracker(), [one], [history(50)])
    (run,) = find_runs(*open_store(), [one["hash"]])
    for argument in ("sweep", run.info.run_id):
        with lock_sweep("sweep"):
            code, out, err = call("rm", argument, "--yes")
        assert (code, out) == (2, "")
        assert err.startswith("fedray: rm: the sweep sweep is running here; stop it first")
    assert call("rm", "sweep", "--yes").code == 0


@pytest.mark.parametrize("option", ["--nodes", "--cpus-per-node", "--gpus-per-node", "--max-concurrent"])
@pytest.mark.parametrize("number", ["1000000000", "9" * 400])
def test_a_number_that_no_cluster_has(option: str, number: str, call: Call) -> None:
    code, out, err = call("sweep", "quickstart", "--dry-run", option, number)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"fedray: Invalid value for '{option}'")
