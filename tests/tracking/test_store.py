"""Requests that the store refuses or repeats, how much of it is read, stores that cannot be used or go away: writes
arrive in order, each once as far as the store can tell. The reader of SQLite files against MLflow's own client."""

import contextlib
import inspect
import itertools
import logging
import math
import os
import platform
import re
import signal
import sqlite3
import threading
import time
import unittest.mock
from collections import Counter
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import FileInfo
from mlflow.exceptions import MlflowException, RestException, get_error_code

from fedray.cells.cell import Cell
from fedray.cells.record import Record
from fedray.cells.status import Ending, Status
from fedray.common import location
from fedray.common.errors import UserError
from fedray.common.process import ending
from fedray.sweep.storage import OFFSETS, get_cell_locks_file, lock_sweep, make_cell_dir
from fedray.tracking import outbox, store
from fedray.tracking.environment import make_environment_tags
from fedray.tracking.outbox import LONGEST, CellRun, Outbox
from fedray.tracking.sqlite_store import SqliteClient
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import FEDAVG, FINISHED, SMALL, cell, history, sheet, write, write_run
from tests.cli.test_runs import held_elsewhere
from tests.conftest import Call, use_store
from tests.tracking.proxy import Dying, Killed

ONE = Cell("a" * 16, "one", {"algorithm": {"name": "fedavg"}, "runtime": {"actors": 1}})


def answered(status: int) -> MlflowException:
    """The error of MLflow's client for a proxy's answer that is not JSON (mlflow.utils.rest_utils)."""
    return MlflowException("API request failed", error_code=get_error_code(status))


@pytest.mark.parametrize(
    "error",
    [
        *map(answered, (401, 403, 404, 429, 500, 502, 503, 504)),
        MlflowException.invalid_parameter_value("(sqlite3.OperationalError) database is locked [SQL: INSERT]"),
        MlflowException.invalid_parameter_value("(sqlite3.IntegrityError) UNIQUE constraint failed: tags.key"),
    ],
)
def test_what_stands_before_the_store_and_what_loses_a_race_refuse_for_a_while(error: MlflowException) -> None:
    assert store.is_transient(error)


@pytest.mark.parametrize("code", ["RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE", "BAD_REQUEST"])
def test_what_mlflow_itself_says_stays_true(code: str) -> None:
    error = RestException({"error_code": code, "message": "(sqlite3.OperationalError) no such table: runs"})
    assert not store.is_transient(error)
    with pytest.raises(UserError, match="the store refuses a request: RestException: "), store.translate_refusals():
        raise error


@pytest.mark.parametrize("text", ["abc", "-1", "nan"])
def test_a_patience_that_is_no_number_of_seconds_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDRAY_STORE_PATIENCE", text)
    with pytest.raises(UserError, match=r"FEDRAY_STORE_PATIENCE: found .*; expected a number of seconds, 0 or more"):
        location.refuse_unwritable_store()
    monkeypatch.setenv("FEDRAY_STORE_PATIENCE", "")
    assert location.get_patience() == location.OUTAGE


def test_a_directory_that_cannot_be_written_is_refused_and_nothing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """No user, not even root, can make a file in /proc/sys."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir("/proc/sys")
    with pytest.raises(UserError, match=r"MLFLOW_TRACKING_URI: cannot write /proc/sys/mlflow.db: .*; set it to"):
        location.refuse_unwritable_store()


@pytest.mark.parametrize(("name", "odd"), [("a?b", r"\?"), ("a%41b", "%41")])
def test_a_folder_that_no_address_holds(name: str, odd: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`?` ends the file's name, and SQLAlchemy 2.1 reads `%41` as `A`."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = tmp_path / name
    folder.mkdir()
    monkeypatch.chdir(folder)
    with pytest.raises(UserError, match=rf"the working directory .* has {odd} in its name"):
        location.store_uri()


def test_relative_addresses_of_files_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tune, and the task of a cluster, work in other directories."""
    monkeypatch.chdir(tmp_path)
    for written in ("runs/my.db", "./runs//my.db"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{written}?timeout=9")
        assert location.store_uri() == f"sqlite:///{tmp_path}/runs/my.db?timeout=9"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////srv/my.db")
    assert location.store_uri() == "sqlite:////srv/my.db"


def test_two_drivers_that_log_one_cell_at_once_double_nothing(project: Path) -> None:
    """Two storages, one store: neither knows of the other's locks. One run, each round and each result in it once."""
    drivers = [(Tracker(), CellRun(ONE)), (Tracker(), CellRun(ONE))]
    for tracker, run in drivers:
        tracker.open_cell(run)
    for t in range(1, 4):
        for tracker, run in drivers:
            tracker.log_rows(run, [{"round": t, "test_accuracy": 50.0 + t}])
            time.sleep(0.01)  # timestamps of the clock would differ
    for tracker, run in drivers:
        tracker.close_cell(run, Record(FINISHED, [{"round": 3, "test_accuracy": 53.0}]))
    client, experiment = store.open_store()
    (found,) = store.find_runs(client, experiment, ["a" * 16])
    for name, steps in {"test_accuracy": [1, 2, 3], "summary/final_test_accuracy": [0]}.items():
        assert [metric.step for metric in client.get_metric_history(found.info.run_id, name)] == steps


def test_drivers_that_make_a_cells_run_at_the_same_moment_agree(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each looks before the other has made its run. Then both have one: the older one stays, the other is deleted."""
    first, second = (Tracker(), CellRun(ONE)), (Tracker(), CellRun(ONE))
    make = second[0]._make

    def late(*arguments: object) -> None:
        first[0].open_cell(first[1])
        time.sleep(0.01)
        make(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(second[0], "_make", late)
    second[0].open_cell(second[1])
    assert first[1].id == second[1].id
    assert len(list(store.find_runs(*store.open_store(), ["a" * 16]))) == 1


@pytest.mark.parametrize("ends", [(0, 1), (1, 0)], ids=["in order", "the later one ends first"])
def test_of_two_runs_of_a_cell_that_have_finished_the_older_one_counts(ends: tuple[int, int], project: Path) -> None:
    """Two folders with one store: each begins before it can know of the other's run, which has ended when it looks."""
    made = [CellRun(ONE), CellRun(ONE)]
    trackers = [Tracker(), Tracker()]
    for tracker, run in zip(trackers, made, strict=True):
        tracker._make(run)
        time.sleep(0.01)
    for k in ends:
        trackers[k].close_cell(made[k], Record(FINISHED, [{"round": 3, "test_accuracy": 53.0}]))
    client, experiment = store.open_store()
    status = {run.info.run_id: run.data.tags["fedray.status"] for run in client.search_runs([experiment])}
    assert status == {made[0].id: "finished", made[1].id: "superseded"}


def test_a_run_whose_maker_got_no_answer_stays_the_only_one(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store makes runs and answers 503 twice, so that the third attempt finds them; one appears after that."""
    monkeypatch.setattr(outbox, "FIRST", 0.01)
    run, lost = CellRun(ONE), list[str]()
    tracker = Tracker()
    make = tracker.client.create_run

    def lose(*arguments: Any, **options: Any) -> Any:
        made = make(*arguments, **options)
        lost.append(made.info.run_id)
        if len(lost) < 3:
            raise answered(503)
        return made

    monkeypatch.setattr(tracker.client, "create_run", lose)
    tracker.open_cell(run, known=False)
    late = make(tracker.experiment, tags=tracker._make_tags(run)).info.run_id
    tracker.close_cell(run, Record(FINISHED, [{"round": 3, "test_accuracy": 53.0}]))
    found = {one.info.run_id: one for one in tracker.client.search_runs([tracker.experiment])}
    assert {id: one.data.tags["fedray.status"] for id, one in found.items()} == {
        lost[0]: "finished",
        late: "superseded",
    }
    assert run.id == lost[0]
    assert store.UNTIMED not in found[run.id].data.tags
    assert found[run.id].data.params


def test_a_store_that_has_answered_is_waited_for_when_a_sweep_opens_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is opened when the first trial has something to write; Ray may have waited for an hour by then."""
    monkeypatch.setattr(outbox, "FIRST", 0.01)
    find = unittest.mock.Mock(side_effect=[answered(503), answered(404), None])
    monkeypatch.setattr("mlflow.MlflowClient.get_experiment_by_name", find)
    with pytest.raises(UserError, match=r"^MLFLOW_TRACKING_URI: the store cannot be used"):
        Tracker()
    with Outbox() as box:
        assert Tracker(box).experiment
    assert find.call_count == 3


def test_a_driver_killed_before_any_of_its_writes_leaves_nothing_half_done(project: Path) -> None:
    """A cell is opened, closed and superseded; then the next call runs it unless the store says that it is finished."""
    end = Record(FINISHED, [{"round": 3, "test_accuracy": 53.0}], tables={"confusion": {"class": [0], "0": [9]}})
    client, experiment = store.open_store(create=True)
    for writes in range(40):
        one, tracker = replace(ONE, hash=f"{writes:016x}"), Tracker()
        tracker.client = dying = Dying(tracker.client, writes)  # type: ignore[assignment]
        with contextlib.suppress(Killed):
            tracker.open_cell(run := CellRun(one), known=False)
            tracker.close_cell(run, end)
            tracker.supersede([one.hash])
        record = store.find_records(client, experiment, [one.hash]).get(one.hash)
        if record is None or record.ending.status is not Status.FINISHED:
            again = Tracker()
            again.open_cell(run := CellRun(one))
            again.close_cell(run, end)
        statuses = Counter(run.data.tags["fedray.status"] for run in store.find_runs(client, experiment, [one.hash]))
        assert statuses["finished"] == 1
        assert set(statuses) <= {"finished", "superseded"}
        for found in store.find_runs(client, experiment, [one.hash]):
            assert found.info.status != "RUNNING"
            assert "confusion.csv" in {each.path for each in client.list_artifacts(found.info.run_id)}
        if dying.left:
            return
    raise AssertionError("40 writes were not enough")


def test_a_sweep_listed_by_a_killed_process_gets_its_file(project: Path) -> None:
    """By the next cell that runs on its own, which opens the sweep only if its list is not there."""
    for writes in range(9):
        listed, tracker = sheet(f"sweep{writes}", [cell(FEDAVG, 0.1, 0)], file="name: it"), Tracker()
        tracker.client = dying = Dying(tracker.client, writes)  # type: ignore[assignment]
        with contextlib.suppress(Killed):
            tracker.list_sweep(listed)
        Tracker().list_sweep(listed)
        assert store.read_stored_sweep(listed.name).file == "name: it"
        if dying.left:
            return
    raise AssertionError("9 writes were not enough")


@pytest.mark.parametrize("rows", [0, 700])
def test_many_rows_come_whole_with_the_end(rows: int, project: Path) -> None:
    """700 rows of 3 metrics are 2,100: three requests. Each round is there once, with the summary."""
    tracker, run = Tracker(), CellRun(ONE)
    tracker.open_cell(run, known=False)
    told = [{"round": float(t), "test_accuracy": 50.0, "test_loss": 1.0, "lr": 0.1} for t in range(1, rows + 1)]
    tracker.close_cell(run, Record(FINISHED, told, {"seconds_per_round": 1.0}))
    client, _ = store.open_store()
    assert sorted(metric.step for metric in client.get_metric_history(run.id, "test_loss")) == list(range(1, rows + 1))
    assert client.get_run(run.id).data.metrics["summary/seconds_per_round"] == 1.0
    assert client.get_run(run.id).info.status == "FINISHED"


def test_rows_that_the_store_refuses_are_sent_with_the_next(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next may be queued already; a resumed call would not write what is older than the store's last row."""
    tracker, run, rows = Tracker(), CellRun(ONE), history(50, 60, 70)
    tracker.open_cell(run, known=False)
    with monkeypatch.context() as refusing:
        refusing.setattr(tracker.client, "log_batch", unittest.mock.Mock(side_effect=ValueError("no such metric")))
        with pytest.raises(ValueError, match="no such metric"):
            tracker.log_rows(run, rows[:1])
    for new in rows[1:2], rows[2:]:
        tracker.log_rows(run, new)
    assert [metric.step for metric in tracker.client.get_metric_history(run.id, "test_accuracy")] == [1, 2, 3]


def test_a_cell_closed_while_the_store_is_away_is_written_later(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that waits for its outcome is called once, when the store has it."""
    monkeypatch.setattr(outbox, "FIRST", 0.01)
    run, told, box = CellRun(ONE), list[str](), Outbox()
    tracker = Tracker(box)
    tracker.open_cell(run, known=False)

    def written() -> None:
        told.append(tracker.client.get_run(run.id).info.status)

    with box, monkeypatch.context() as away:
        refuse = unittest.mock.Mock(side_effect=answered(503))
        away.setattr(tracker.client, "set_terminated", refuse)
        box.send(tracker.close_cell, run, Record(FINISHED), written)
        while not refuse.called:
            time.sleep(0.01)
        assert told == []
    assert told == ["FINISHED"]


def test_a_file_that_another_process_holds_is_asked_again(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a cell has a run is read from the file itself, which waits 20 s for a lock, here none."""
    monkeypatch.setattr("fedray.tracking.sqlite_store.PATIENCE", 0.0)
    monkeypatch.setattr(outbox, "FIRST", 0.01)
    run, box = CellRun(ONE), Outbox()
    tracker = Tracker(box)
    with box, contextlib.closing(sqlite3.connect("mlflow.db")) as other:
        other.execute("BEGIN EXCLUSIVE")
        box.send(tracker.open_cell, run)
        with pytest.raises(UserError, match=rf"locked: another process holds {project}/mlflow.db; wait for it, or end"):
            store.open_reader()
        assert not run.id
        other.rollback()
    assert [one.info.run_id for one in store.find_runs(*store.open_store(), ["a" * 16])] == [run.id]


def test_mlflow_prints_no_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ "View run ... at: ADDRESS" of MLflow would hold the password of a server's address, once per cell."""
    from mlflow.environment_variables import MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.delenv("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", raising=False)
    store.open_store(create=True)
    assert MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT.get()


def tables(database: Path) -> int:
    """How many a SQLite file has."""
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as opened:
        return int(opened.execute("SELECT count(*) FROM sqlite_master WHERE type = 'table'").fetchone()[0])


def test_a_process_killed_while_it_makes_the_store_breaks_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real SIGKILL once some tables are there; MLflow refuses to open such a file (`table ... already exists`)."""
    from mlflow.store.db import utils

    monkeypatch.setattr(utils, "_initialize_tables", inspect.unwrap(utils._initialize_tables))
    database, half = tmp_path / "mlflow.db", tmp_path / "mlflow.db.new"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{database}")
    maker = os.fork()  # it has imported MLflow
    if maker == 0:
        store.open_store(create=True)
        os._exit(0)
    made = 0
    while not made:
        assert os.waitpid(maker, os.WNOHANG) == (0, 0), "it has ended"
        with contextlib.suppress(sqlite3.OperationalError):  # not there yet, or locked
            made = tables(half)
    os.kill(maker, signal.SIGKILL)
    os.waitpid(maker, 0)
    assert not database.exists()
    (tmp_path / "mlflow.db-journal").write_bytes(b"of a store that was removed")
    _, experiment = store.open_store(create=True)
    assert store.open_store() == (unittest.mock.ANY, experiment)
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db"]
    assert 0 < made < tables(database)


HERE = {"environment.numpy": "2.1.0", "environment.cpu": "Xeon", "fedray.cell": "a"}
ELSEWHERE = {"environment.numpy": "2.2.0", "environment.cpu": "Xeon", "environment.gpu": "H100"}


def attempt(status: Status, seconds: float, shown: bool = False, gpu: str = "H100") -> None:
    """Call a cell for so long; a RUNNING one is killed. gpu: of the machine that trains it, or shows it."""
    tracker, run = Tracker(), CellRun(ONE, began=0.0, ended=seconds, shown=shown)
    tracker.open_cell(run)
    if status is not Status.RUNNING:
        tracker.close_cell(run, Record(Ending(status), history(50), tags={"environment.gpu": gpu}))


def test_a_resumed_run_sums_time_and_has_its_last_environment(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted after 5 s, then killed, then finished in 7 s elsewhere: 12 s, one call without a time. A call that
    only shows the finished run changes nothing. A trial tells its own machine's GPU; the driver's may have none."""

    def tags() -> list[str | None]:
        (run,) = store.find_runs(*store.open_store(), [ONE.hash])
        names = ("fedray.seconds", "fedray.untimed", "environment.numpy", "environment.python", "environment.gpu")
        return [run.data.tags.get(name) for name in names]

    attempt(Status.INTERRUPTED, 5)
    assert tags() == ["5.000", None, version("numpy"), platform.python_version(), "H100"]
    attempt(Status.RUNNING, 100)
    monkeypatch.setattr("fedray.tracking.tracker.make_environment_tags", lambda: make_environment_tags() | ELSEWHERE)
    attempt(Status.FINISHED, 7, gpu="H200")
    expected = ["12.000", "1", "2.2.0", platform.python_version(), "H200"]
    assert tags() == expected
    monkeypatch.setattr("fedray.tracking.tracker.make_environment_tags", lambda: HERE)
    attempt(Status.FINISHED, 3, shown=True)
    assert tags() == expected


@pytest.mark.parametrize("scheme", ["http", "postgresql"])
@pytest.mark.parametrize("sign", ["/", "#", "?"])
def test_no_part_of_a_password_is_shown(scheme: str, sign: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser of addresses takes what stands before the sign for a port, and says it."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{scheme}://me:hunter2{sign}secret@127.0.0.1:1/db")
    with pytest.raises(UserError, match=r"whose host or port cannot be read; write / \? # of a password as") as caught:
        store.open_store()
    assert not [word for word in ("hunter2", "secret") if word in str(caught.value)]


@pytest.mark.parametrize("create", [False, True])
def test_an_experiment_that_was_deleted(project: Path, create: bool) -> None:
    client = MlflowClient(location.store_uri())
    number = client.create_experiment("fedray")
    client.delete_experiment(number)
    refusal = rf"'fedray' has been deleted in MLflow; `mlflow experiments restore --experiment-id {number}` restores it"
    for open_ in (lambda: store.open_store(create), store.open_reader):
        with pytest.raises(UserError, match=refusal):
            open_()


@pytest.mark.parametrize(("address", "module"), [("s3://bucket/a", "boto3"), ("hdfs://host/a", "pyarrow")])
def test_artefacts_needing_a_library(address: str, module: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "find_spec", lambda name: None)
    MlflowClient(location.store_uri()).create_experiment("fedray", address)
    for open_ in (store.open_store, store.open_reader):
        with pytest.raises(UserError, match=rf"are at {address}, which needs the module {module}; install it"):
            open_()


def test_rm_leaves_a_running_sweep_alone(project: Path, call: Call) -> None:
    """By its name, and by a run of it; also while `fedray run --cell` trains, which closes no sweep that is gone."""
    write(Tracker(), [ONE.to_json()], [history(50)])
    (run,) = store.find_runs(*store.open_store(), [ONE.hash])
    for argument in ("sweep", run.info.run_id):
        with lock_sweep("sweep"):
            code, out, err = call("rm", argument, "--yes")
        assert (code, out) == (2, "")
        assert err.startswith("fedray: rm: the sweep sweep is running here; stop it first")
        make_cell_dir(ONE.hash)
        get_cell_locks_file().parent.mkdir(exist_ok=True)
        with held_elsewhere(get_cell_locks_file(), int(ONE.hash, 16) % OFFSETS):
            assert call("rm", argument, "--yes").refused.startswith(f"fedray: rm: the cell {ONE.hash} is running here")
    client, experiment = store.open_store()
    client.delete_run(store.find_sweeps(client, experiment)["sweep"].info.run_id)
    Tracker().close_whole_sweep(sheet("sweep", [ONE.to_json()]))
    assert call("rm", run.info.run_id, "--yes").code == 0


class Store:
    """A store that is `up` or not, and a clock that only sleeping moves (one that is injected)."""

    def __init__(self) -> None:
        self.up, self.now, self.held, self.attempts = True, 1000.0, list[object](), list[float]()
        self.back = float("inf")

    def write(self, value: object) -> None:
        self.attempts.append(self.now)
        if not (self.up or self.now >= self.back):
            raise ConnectionError("refused")
        if value == "wrong":
            raise ValueError("no such thing")
        self.held.append(value)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def outbox(self) -> Outbox:
        return Outbox(lambda: self.now, self.sleep)

    def deliver(self, box: Outbox, value: object) -> None:
        box.deliver(lambda: self.write(value), lambda error: isinstance(error, OSError))


def test_what_is_sent_while_the_store_is_away_arrives_in_order(caplog: pytest.LogCaptureFixture) -> None:
    """Away from 1000 s to 1600 s, which is longer than anybody would wait. Attempts after 1, 2, 4, 8, 16 and then each
    30 s: at 1001, 3, 7, 15, 31, 61, ... 1601, and all ten in that one."""
    store, sent = Store(), threading.Event()
    store.up, store.back = False, 1600.0
    with caplog.at_level(logging.WARNING, "fedray"), store.outbox() as box:
        box.send(sent.wait)
        for value in range(10):
            box.send(store.deliver, box, value)
        sent.set()
        while len(store.held) < 10:
            time.sleep(0.01)
    assert store.held == list(range(10))
    assert [round(at - 1000) for at in store.attempts] == [0, 1, 3, 7, 15, *range(31, 600, 30), *[601] * 10]
    assert LONGEST == 30
    lost = "MLflow is unreachable (refused); buffering writes and retrying"
    assert [line.message for line in caplog.records] == [lost, "MLflow is reachable again; 9 writes waiting"]


def test_who_waits_for_a_store_waits_five_minutes_and_nothing_is_called_afterwards() -> None:
    store = Store()
    store.up, box = False, store.outbox()
    said = r"unreachable for 300 s \(refused\); not in it yet: 1 write. Run the same command again"
    with pytest.raises(UserError, match=said):
        store.deliver(box, 0)
    assert 1300 <= store.now <= 1301
    store.up = True
    with pytest.raises(UserError, match=said):
        store.deliver(box, 0)
    assert not store.held


@pytest.mark.parametrize(("answers", "reason"), [(True, "refused"), (False, "10 s were not enough")])
def test_a_process_told_to_end_waits_ten_seconds(answers: bool, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    """However long a store may be away otherwise: batch systems give a process 30 seconds after SIGTERM."""
    store, answered = Store(), threading.Event()
    store.up, box = False, store.outbox()
    if not answers:  # nothing sleeps: the clock moves 4 s at each look
        store.write, box = lambda value: answered.wait(), Outbox(itertools.count(0, 4).__next__)  # type: ignore[assignment]
    with contextlib.ExitStack() as afterwards:
        afterwards.callback(answered.set)
        afterwards.callback(ending.clear)
        ending.set()
        with pytest.raises(KeyboardInterrupt):
            store.deliver(box, 0)
    assert caplog.messages[-1] == f"not in MLflow yet: 1 write ({reason})"
    assert not answers or 1010 <= store.now <= 1011


def test_a_process_that_is_to_end_leaves_writes_behind_that_take_too_long(caplog: pytest.LogCaptureFixture) -> None:
    """The store answers, but a sweep of thousands of cells may be many minutes ahead of it. Each write takes 4 s here:
    at 1000, 1004 and 1008 s ten seconds are not over. Without SIGTERM all are written, with a line each 30 s."""
    store = Store()

    def send(box: Outbox) -> None:
        def write(value: int) -> None:
            while box._waited == math.inf:  # until `finish` waits
                time.sleep(0.001)
            store.now += 4
            store.deliver(box, value)

        for value in range(20):
            box.send(write, value)

    with contextlib.ExitStack() as afterwards, store.outbox() as box:
        afterwards.callback(ending.clear)
        ending.set()
        send(box)
        with pytest.raises(KeyboardInterrupt):
            box.finish()
        assert caplog.messages == ["not in MLflow yet: 18 writes (10 s were not enough)"]
    assert store.held == [0, 1]
    with store.outbox() as box:
        send(box)
        box.finish()
    assert store.held[2:] == list(range(20))
    assert caplog.messages[1:]
    assert all(re.fullmatch(r"MLflow: \d+ writes? left", line) for line in caplog.messages[1:])


def test_what_the_store_refuses_is_raised_and_does_not_stop_the_rest() -> None:
    store = Store()
    with store.outbox() as box:
        for value in ("wrong", "wrong", 1):  # the second fails for the same reason
            box.send(store.deliver, box, value)
        with pytest.raises(ValueError, match="no such thing"):
            box.finish()
        box.finish()
    assert store.held == [1]


@pytest.mark.parametrize("answers", [True, False])
def test_a_write_without_an_answer_is_waited_for_and_not_repeated(
    answers: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that sends a byte now and then passes MLflow's limit, which is one for each byte."""
    monkeypatch.setattr(outbox, "SLOW", 0.05)
    monkeypatch.setattr(outbox, "STEP", 0.01)
    monkeypatch.setenv("FEDRAY_STORE_PATIENCE", "1")
    store, answered, box = Store(), threading.Event(), Outbox()
    with contextlib.ExitStack() as afterwards, caplog.at_level(logging.WARNING, "fedray"):
        afterwards.callback(answered.set)
        box.send(box.deliver, lambda: [store.write("slow"), answered.wait()], lambda error: True)
        box.send(store.deliver, box, "next")
        while not caplog.messages:
            time.sleep(0.01)
        if answers:
            answered.set()
            box.finish()
        else:
            said = r"unreachable for 1 s \(no answer in 0.05 s\); not in it yet: 2 writes\. Run"
            with pytest.raises(UserError, match=said):
                box.finish()
    box.__exit__()
    assert store.held == (["slow", "next"] if answers else ["slow"])


CELLS = [cell(method, alpha, 0) for method in (FEDAVG, SMALL) for alpha in (0.1, 0.5)]
HASHES = [one["hash"] for one in CELLS]
FILTERS = [f"kind` = {rest}" for rest in ("'sweep'", "'cell'", "'cell' AND tags.`fedray.status` != 'superseded'")]
FILTERS += [f"cell` = '{cell}'" for cell in (HASHES[2], "none")]


@pytest.fixture
def tracker(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Tracker:
    """A sweep of four cells: finished, failed, finished after a superseded run, and deleted."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    use_store(folder, monkeypatch, empty_store)
    made = Tracker()
    parent = made.open_sweep(sheet("sweep", CELLS, description="it's a description", file=FILE))
    run = write_run(made, CELLS[0], history(50, 60), parent=parent, files={"partition.png": b"png"})
    made.client.log_metric(run, "odd", float("nan"), step=1)
    made.client.log_metric(run, "own", 0.25)
    made.client.log_metric(run, "large", float("inf"), step=1)
    write_run(made, CELLS[1], history(50), Ending(Status.FAILED, "it's why"), parent=parent)
    write_run(made, CELLS[2], history(40), parent=parent)
    made.supersede([HASHES[2]])
    write_run(made, CELLS[2], history(70), parent=parent, again=False)
    made.client.delete_run(write_run(made, CELLS[3], history(80), parent=parent))
    made.close_sweep(parent, {Status.FINISHED: 2, Status.FAILED: 1, Status.MISSING: 1})
    made.close()
    return made


def describe(run: Any) -> tuple[object, ...]:
    """All that fedray reads of a run; NaN as text, which equals itself."""
    fields = ("run_id", "run_name", "status", "start_time", "end_time", "artifact_uri", "experiment_id")
    metrics = {name: str(value) for name, value in run.data.metrics.items()}
    shown = {name: str(value) for name, value in store.read_record(run).totals.items()}
    return *(getattr(run.info, field) for field in fields), run.data.tags, metrics, shown


@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize("filter", FILTERS)
def test_the_same_runs_as_mlflow(tracker: Tracker, filter: str, deleted: bool) -> None:
    """The same runs in the same order, with the same times, tags and metrics."""
    filter = f"tags.`fedray.{filter}"
    client, experiment = store.open_reader()
    assert isinstance(client, SqliteClient)
    assert experiment == tracker.experiment
    ours = [describe(run) for run in store.search(client, experiment, filter, deleted)]
    assert ours == [describe(run) for run in store.search(tracker.client, experiment, filter, deleted)]
    assert bool(ours) == ("none" not in filter and (not deleted or "= 'cell'" in filter))


def test_same_histories_and_files_as_mlflow(tracker: Tracker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client, experiment = store.open_reader()
    queries = list[str]()
    client._file.set_trace_callback(queries.append)  # type: ignore[union-attr]
    best = store.pick_best(store.find_runs(client, experiment, HASHES))
    assert list(best) == HASHES[:3]
    assert len(queries) == 4, "one for the ids and three for what their runs hold, however many cells"
    run = best[HASHES[0]].info.run_id
    for name in ("test_accuracy", "odd", "large", "unknown"):
        points = [
            [(point.step, point.timestamp, str(point.value)) for point in reader.get_metric_history(run, name)]
            for reader in (client, tracker.client)
        ]
        assert points[0] == points[1]
    assert best[HASHES[2]].data.metrics["test_accuracy"] == 70
    folders = [Path(reader.download_artifacts(run, "", str(tmp_path))) for reader in (client, tracker.client)]
    assert folders[0] != folders[1] == tmp_path
    for folder in folders:
        assert {"config.yaml", "partition.png"} <= {file.name for file in folder.iterdir()}
    assert store.read_artefact(client, run, "partition.png") == b"png"
    assert store.read_artefact(tracker.client, run, "partition.png") == b"png"
    assert store.read_artefact(client, run, "none") is store.read_artefact(tracker.client, run, "none") is None
    (sweep,) = store.find_sweeps(client, experiment).values()
    assert [cell.to_json() for cell in store.read_cells(client, sweep).values()] == CELLS
    assert store.read_sweep_file(client, sweep) == store.read_sweep_file(tracker.client, sweep) == FILE
    # Its driver may have been killed: the next call ends it.
    tracker.open_sweep(sheet("sweep", CELLS, file=FILE))
    # An experiment of a SQLite store can have its artefacts on a server: there are no files to read here.
    tracker.client.create_experiment("elsewhere", "mlflow-artifacts:/elsewhere")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "elsewhere")
    client, _ = store.open_reader()
    assert not isinstance(client, SqliteClient)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "nowhere")
    with pytest.raises(store.NotStored, match="no experiment named 'nowhere'"):
        store.open_reader()


def test_a_file_counts_as_missing_only_if_the_list_of_files_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    client, away = MlflowClient("http://none"), unittest.mock.Mock(side_effect=answered(503))
    monkeypatch.setattr(client, "download_artifacts", away)
    monkeypatch.setattr(client, "list_artifacts", lambda run: [FileInfo("partition.png", False, 3)])
    assert store.read_artefact(client, "r", "none") is None
    with pytest.raises(UserError, match=r"run r: its file partition.png cannot be read from .* failed") as one:
        store.read_artefact(client, "r", "partition.png")
    assert store.is_transient(one.value), "the outbox tries again"
    monkeypatch.setattr(client, "list_artifacts", away)
    with pytest.raises(UserError, match="its file none cannot be read"):
        store.read_artefact(client, "r", "none")


FILE = "name: sweep  # α\n"
COUNTS = {Status.FINISHED: 2, Status.FAILED: 1, Status.MISSING: 1}
