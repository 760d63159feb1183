"""Shared by all tests: one thread per process, and the place of real data, if there are any."""

import contextlib
import gc
import os
import shutil
import socket
import sqlite3
import sys
import time
from collections.abc import Callable
from functools import cache, wraps
from importlib import metadata
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch
from sqlalchemy import Engine, event

if TYPE_CHECKING:
    from fedray.tracking.tracker import Tracker

torch.set_num_threads(1)  # results depend on it, and the suite's processes share few cores
gc.set_threshold(50_000)  # imports make a million objects that stay: looking through them all takes a tenth of the time


def each(*rows: Any) -> Callable[[Callable[..., None]], Any]:
    """Parametrise a test: a row has the values of its first arguments, or the value of its first one."""

    def parametrise(test: Callable[..., None]) -> Any:
        names = [*signature(test).parameters][: len(rows[0]) if isinstance(rows[0], tuple) else 1]
        return pytest.mark.parametrize(",".join(names), rows)(test)

    return parametrise


def shared_data(name: str) -> Path:
    """A file of real data, from $FEDRAY_TEST_DATA or ../shared/data next to the repository; skips if it is absent."""
    default = Path(__file__).parent.parent.parent / "shared" / "data"
    path = Path(os.environ.get("FEDRAY_TEST_DATA", default)) / name
    if not path.exists():
        pytest.skip(f"real data not present: {name} (set FEDRAY_TEST_DATA)")
    return path


@pytest.fixture(scope="session", autouse=True)
def _write_without_waiting() -> None:
    """MLflow's databases wait for no disk: what the tests write need not outlive a machine that loses power."""

    def connect(connection: object, _: object) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.execute("PRAGMA synchronous=OFF")
            connection.execute("PRAGMA journal_mode=MEMORY")

    event.listen(Engine, "connect", connect)


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow's database without runs: making one takes seconds, copying it none. MLflow copies its tables after it."""
    from mlflow import MlflowClient
    from mlflow.store.db import utils

    utils._get_latest_schema_revision = cache(utils._get_latest_schema_revision)  # 67 modules are read for it
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    make, tables = utils._initialize_tables, sqlite3.connect(":memory:", check_same_thread=False)

    def keep(engine: Engine) -> None:
        make(engine)
        with contextlib.closing(engine.raw_connection()) as made:
            made.driver_connection.backup(tables)

    @wraps(make)
    def copy(engine: Engine) -> None:
        if engine.dialect.name == "sqlite":
            with contextlib.closing(engine.raw_connection()) as new:
                tables.backup(new.driver_connection)
        else:
            make(engine)

    utils._initialize_tables = keep
    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    utils._initialize_tables = copy
    return path


def use_store(folder: Path, patch: pytest.MonkeyPatch, database: Path | None = None) -> None:
    """Use the store of a folder that is not the working folder; database: what is copied there first."""
    if database is not None:
        shutil.copy(database, folder / "mlflow.db")
    patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
    patch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)


def work_in(folder: Path, patch: pytest.MonkeyPatch, database: Path | None = None) -> Path:
    """Work in a folder as a user who has set nothing; database: of its store, which is copied there first."""
    if database is not None:
        shutil.copy(database, folder / "mlflow.db")
    patch.chdir(folder)
    for name in [name for name in os.environ if name.startswith(("MLFLOW_", "RAY_ADDRESS", "FEDRAY_STORAGE"))]:
        patch.delenv(name)
    return folder


def list_environment() -> dict[str, str]:
    """The variables of this process without those of MLflow, Ray and fedray, for a process of its own."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "RAY_", "FEDRAY_"))}


@pytest.fixture
def store(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> "Tracker":
    """A store without runs, for tests to write runs into."""
    from fedray.tracking.tracker import Tracker

    use_store(tmp_path, monkeypatch, empty_store)
    return Tracker()


@pytest.fixture
def project(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of a user who has set nothing, with a store without runs."""
    return work_in(tmp_path, monkeypatch, empty_store)


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working folder, below which the storage is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDRAY_STORAGE", raising=False)


@pytest.fixture
def port() -> int:
    """A free port of this machine, for a server that a test starts."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


class Called(NamedTuple):
    """What a call of the command line leaves: its exit code and its output."""

    code: int
    out: str
    err: str

    @property
    def done(self) -> str:
        """The output of a call that ended well."""
        assert self.code == 0, self.err
        return self.out

    @property
    def refused(self) -> str:
        """What is said of a call that was refused."""
        assert self.code == 2, self.err
        return self.err


Call = Callable[..., Called]
Hide = Callable[[str], None]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Call `fedray` with these arguments, in this process."""
    from fedray.cli import main as cli

    def run(*arguments: str) -> Called:
        monkeypatch.setattr("sys.argv", ["fedray", *arguments])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        return Called(int(exit_.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture
def hide_package(monkeypatch: pytest.MonkeyPatch) -> Hide:
    """Make a package look as if it were not installed."""
    find = metadata.distribution

    def hide(package: str) -> None:
        def find_others(name: str) -> metadata.Distribution:
            if name == package:
                raise metadata.PackageNotFoundError(name)
            return find(name)

        monkeypatch.setattr(metadata, "distribution", find_others)

    return hide


LONGEST = (
    *("sweep/driver/test_run.py", "cluster/test_ray_backend.py", "golden/test_golden.py", "cluster/test_allocation.py"),
    *("sweep/trials/test_tune.py", "oracle/test_oracle.py", "cli/test_run.py", "test_front_door.py"),
    *("cli/test_door.py", "tracking/test_foreign_stores.py", "sweep/plan/test_estimate.py", "analysis/test_report.py"),
    *("analysis/test_figures.py", "cli/test_security.py", "analysis/test_results.py", "docs/test_readme.py"),
)
"""Files that take 20 seconds and more, the longest first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that share a Ray come first, then long ones: the workers end together."""
    sharing = {item.path for item in items if needs_ray(item)}
    rank = {Path(__file__).parent / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (item.path not in sharing, rank.get(item.path, len(rank))))


def needs_ray(item: pytest.Item) -> bool:
    return "local_ray" in getattr(item, "fixturenames", ())


@pytest.fixture(scope="module", autouse=True)
def _no_ray_of_others(request: pytest.FixtureRequest) -> None:
    """The shared Ray ends before the first file that does not use it."""
    of_file = [item for item in request.session.items if item.path == request.path]
    if "ray" in sys.modules and not any(needs_ray(item) for item in of_file):
        sys.modules["ray"].shutdown()


@pytest.fixture(scope="module")
def local_ray(_no_ray_of_others: None) -> None:
    """A Ray of 8 CPUs and a logical GPU, with which the next file that asks for it goes on if nothing of it is held."""
    import ray

    deadline = time.monotonic() + 10
    while ray.is_initialized() and ray.available_resources().get("CPU") != 8:
        if time.monotonic() > deadline:
            ray.shutdown()
        time.sleep(0.1)
    if not ray.is_initialized():
        start_ray(num_cpus=8, num_gpus=1)


def start_ray(**resources: Any) -> None:
    """Start a Ray of its own for a test; a shared one ends."""
    import ray

    from fedray.cluster.ray_private import leave_out_servers, reread_environment

    ray.shutdown()
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    with leave_out_servers(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")  # with Ray's 15 they starve on a busy machine
        reread_environment()
        ray.init("local", _node_ip_address="127.0.0.1", **quiet, **resources)


@pytest.fixture(autouse=True)
def _alike() -> None:
    """Each test begins with one thread, the same PyTorch generator and no warning said: the same in any order."""
    from fedray.common.errors import warn_once

    torch.set_num_threads(1)
    torch.manual_seed(0)
    warn_once.cache_clear()
