"""`fedray status` on a sweep, `fedray rm` on its runs, and `fedray clean` on its files."""

import contextlib
import fcntl
import io
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml

from fedray.cells.cell import Cell
from fedray.cells.sheet import Sheet
from fedray.common.location import get_storage
from fedray.sweep.storage import CellLocks, get_cell_locks_file, get_sweep_lock_file, lock_sweep, note_first_cell
from fedray.tracking.store import IS_CELL, LISTED, find_runs, get_label, search
from fedray.tracking.tracker import Tracker
from fedray.tracking.view import save_view
from tests.analysis.runs import FEDAVG, LARGE, SMALL, cell, rows, write
from tests.conftest import Call
from tests.small import sections
from tests.tracking.proxy import Dying, Killed, Quiet, serving

pytestmark = pytest.mark.usefixtures("nowhere")


def test_status_counts_and_says_why(store: Tracker, call: Call) -> None:
    cells = [cell(FEDAVG, 0.1, 0), cell(FEDAVG, 0.1, 1), cell(SMALL, 0.1, 0)]
    write(store, cells, [50, ("failed", [])])
    traceback = get_storage() / "cells" / cells[1]["hash"] / "traceback.txt"
    traceback.parent.mkdir(parents=True)
    traceback.write_text("Traceback")
    first, *rest = call("status", "sweep").done.splitlines()
    assert first.startswith("sweep: 3 cells, ")
    assert set(first.removeprefix("sweep: 3 cells, ").split(", ")) == {"1 finished", "1 failed", "1 missing"}
    assert rest == [
        f"failed      {cells[1]['hash']}  {cells[1]['label']}: why",
        f"            run {run_id(store, cells[1])}",
        f"            {traceback}",
        f"missing     {cells[2]['hash']}  {cells[2]['label']}",
        "the same `fedray sweep` command runs what is left: 2 cells to train",
    ]
    _, whole, _ = call("status", "sweep", "--all")
    assert f"finished    {cells[0]['hash']}  {cells[0]['label']}\n            run {run_id(store, cells[0])}" in whole


def run_id(store: Tracker, cell: dict[str, Any]) -> str:
    (run,) = search(store.client, store.experiment, f"tags.`fedray.cell` = '{cell['hash']}'")
    return str(run.info.run_id)


def test_status_lists_sweeps_and_nothing_runs_whose_lock_is_free(store: Tracker, call: Call) -> None:
    """Three cells are `running` in the store: one process was killed, one lives, one has its folder elsewhere."""
    assert call("status")[:2] == (0, "this store holds no sweep\n")
    cells = [hashed(seed) for seed in range(4)]
    write(store, cells, [*[("running", [])] * 3, 50])
    write(store, cells[:1], [], name="other/one")
    stored(cells[0]["hash"], cells[1]["hash"])
    get_cell_locks_file().parent.mkdir(parents=True)
    with held_elsewhere(get_cell_locks_file(), int(cells[1]["hash"], 16)):
        _, out, _ = call("status")
        with lock_sweep("other/one"):
            _, locked, _ = call("status")
        with lock_sweep("new", Sheet("new", {})):  # Ray starts, and the store does not know the sweep yet
            assert call("status", "new").done == "new is starting, 0 s so far: Ray, then the first processes\n"
            assert "'new' has nothing in this store; `fedray status`" in call("tables", "new").err
            assert json.loads(call("status", "new", "--json").out)["note"].startswith("new is starting")
            last = "new        starting, 0 s so far: Ray, then the first processes"
            assert call("status").out.splitlines()[-1] == last
            assert json.loads(call("status", "--json").out)[-1] == {"name": "new", "cells": {}, "running": True}
        _, one, _ = call("status", "sweep")
    words = {line.split()[0]: line.split(maxsplit=3)[3] for line in out.splitlines()}
    assert words == {"sweep": "1 finished, 1 interrupted, 2 running", "other/one": "1 interrupted"}
    assert "1 interrupted; running now" in locked
    assert f"interrupted {cells[0]['hash']}  " in one
    assert one.count("running     ") == 2


def test_a_sweep_killed_as_ray_started_has_nothing(store: Tracker, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    get_sweep_lock_file("dead").parent.mkdir(parents=True)
    get_sweep_lock_file("dead").touch()
    err = call("status", "dead").refused
    assert err.startswith("fedray: sweep: 'dead' has nothing in this store; ")
    with monkeypatch.context() as patch:  # without any store
        patch.setenv("MLFLOW_TRACKING_URI", "sqlite:///none.db")
        assert (call("status", "dead").err, call("tables", "dead").err) == (err, err)
        assert call("status").err == "fedray: there is no store; dead: ended before a cell began; run again\n"
    write(store, [hashed(0)], [50], name="dead/tune")  # it had tuned, and its final stage was killed while Ray started
    assert call("status", "dead").done.startswith("dead/tune")


def test_a_sweep_without_a_store_is_told_by_locks(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of three cells has its last checkpoint; a killed process leaves the lock's file as it is. The call began 100
    s ago with two cells, `--only` these: the second one takes another 100 s."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/none.db")
    monkeypatch.setenv("FEDRAY_STORAGE", str(tmp_path / "storage"))
    cells = [replace(Cell.from_json(hashed(seed)), config={"training": {"rounds": 4}}) for seed in range(3)]
    with lock_sweep("early", Sheet("early", {one.hash: one for one in cells}), [one.hash for one in cells[:2]]):
        get_cell_locks_file().touch()
        (folder,) = stored(cells[0].hash)
        with held_elsewhere(get_cell_locks_file(), int(cells[0].hash, 16)):  # as the process locks all its cells
            assert call("status", "early").done.startswith("early is starting, ")
            with monkeypatch.context() as patch:
                patch.setattr("time.time", lambda: 0.0)  # the clock was set back
                note_first_cell("early")
            assert call("status", "early").done.startswith("early: 3 cells, 1 running, ")
            note_first_cell_ago(0)
            assert call("status", "early").done.startswith("early: 3 cells, 1 running, 1 to run, ")
        assert call("status", "early").done == "early is running now\n", "no cell of its has come to a checkpoint"
        (folder / "checkpoint-4.json").touch()
        told = "1 finished (1 of them not yet in MLflow), 2 to run; running now"
        note_first_cell_ago(100)
        chosen = "1 finished (1 of them not yet in MLflow), 1 to run, 1 that this call leaves out; running now"
        assert call("status", "early").done == f"early: 3 cells, {chosen}, about 1.7 min to go\n"
        assert call("status").done == f"early  {told}\n"
        left = get_sweep_lock_file("early").read_text()
    assert get_sweep_lock_file("early").read_text() == ""
    get_sweep_lock_file("early").write_text(left)
    assert call("status").done == "early  1 finished (1 of them not yet in MLflow), 2 missing\n"
    assert call("status", "early").done.endswith("runs what is left: 2 cells to train, 1 cell to log\n")
    assert "if its call was killed, the same `fedray sweep` command goes on" in call("tables", "early").err
    get_sweep_lock_file("early").write_text(left[:-5])
    assert call("status").code == 2


def note_first_cell_ago(seconds: float) -> None:
    """As if the call of `early` had begun 200 s ago, and its first cell so many seconds ago."""
    lock, now = get_sweep_lock_file("early"), time.time()
    lock.write_text(json.dumps(json.loads(lock.read_text()) | {"began": now - 200}))
    os.utime(lock, (now - seconds, now - seconds))


def test_rm_of_one_cell_and_clean_of_what_it_left(store: Tracker, call: Call) -> None:
    cells = [hashed(seed) for seed in range(3)]
    write(store, cells, [50] * 3)
    write(store, cells[2:], [], name="other")
    (folder, *_), get_locks = stored(*(one["hash"] for one in cells)), get_cell_locks_file()
    get_locks.parent.mkdir(parents=True)
    for wanted, message in (("ffff", "names no cell"), ("0000", "stays for it"), (cells[2]["hash"], "stays for it")):
        assert message in call("rm", "sweep", "--cell", wanted, "--yes").err
    out = call("rm", "sweep", "--cell", cells[0]["hash"], "--yes").done
    assert out == f"deletes {cells[0]['hash']}  {cells[0]['label']}\nsweep: 1 run deleted\n"
    assert "2 finished, 1 missing" in call("status").out
    assert f"{folder} (its runs were removed)" in call("clean").out
    call("clean", "--yes")
    assert not folder.exists()


def test_a_killed_driver_leaves_trained_cells_that_are_not_missing(store: Tracker, call: Call) -> None:
    """Of four cells of four rounds, one is in MLflow. Of the others, all in the log's queue when the driver was killed,
    two have the checkpoint of round 4, one of them a run that was open; the third has that of round 2."""
    cells = [hashed(seed) for seed in range(4)]
    for one in cells:
        one["config"]["training"] = {"rounds": 4}
    write(store, cells, [50, ("running", []), None, None])
    for (folder,), round in zip((stored(one["hash"])[:1] for one in cells[1:]), (4, 4, 2), strict=True):
        (folder / f"checkpoint-{round}.json").touch()
    get_cell_locks_file().parent.mkdir(parents=True, exist_ok=True)
    told = "3 finished (2 of them not yet in MLflow), 1 interrupted"
    assert call("status").done.strip().split("  ")[-1] == told
    assert call("status", "sweep").done.splitlines() == [
        f"sweep: 4 cells, {told}",
        f"interrupted {cells[3]['hash']}  {cells[3]['label']}: round 2 of 4",
        "the same `fedray sweep` command runs what is left: 1 cell to train (1 from a checkpoint), 2 cells to log",
    ]
    whole = call("status", "sweep", "--all").out
    assert f"finished but not yet in MLflow {cells[2]['hash']}  {cells[2]['label']}" in whole
    _, table, _ = call("tables", "sweep")
    resumed = "- 1 of 4 cells interrupted; `fedray sweep` with its file resumes it"
    assert f"{resumed}\n" in table
    assert "- entries that lack seeds, as they say, are not ranked\n" in table
    assert "- 2 of 4 cells finished but not yet in MLflow; `fedray sweep` with its file logs them\n" in table
    with held_elsewhere(get_cell_locks_file(), int(cells[3]["hash"], 16)), lock_sweep("sweep"):
        first, line = call("status", "sweep").done.splitlines()
        (folder / "rows.jsonl").write_text('{"round": 1}\n{"round": 3}\n')  # tested since its checkpoint
        _, later = call("status", "sweep").done.splitlines()
        *others, told_last = json.loads(call("status", "sweep", "--json").done)["cells"]
        assert "- 1 of 4 cells running" not in (shown := call("tables", "sweep").out)
        assert "- 2 of 4 cells finished but not yet in MLflow; a call of the sweep is running" in shown
        (folder / "rows.jsonl").write_text('{"round": 1}\n{"rou')
        _, cut = call("status", "sweep").done.splitlines()
    assert later == f"{line.removesuffix('2 of 4')}3 of 4"
    assert (told_last["round"], told_last["rounds"]) == (3, 4)
    assert not any("round" in one for one in others), "they do not run"
    assert cut == line
    assert first == "sweep: 4 cells, 3 finished (2 of them not yet in MLflow), 1 running; running now"
    assert line == f"running     {cells[3]['hash']}  {cells[3]['label']}: round 2 of 4"


def test_checkpoints_are_promised_to_the_code_that_wrote_them(store: Tracker, call: Call) -> None:
    """Status imports no class, so it cannot tell whether one has changed; without one of yours nothing can have."""
    (folder,) = stored(hashed(0)["hash"])
    (folder / "checkpoint-2.json").touch()
    for own in ({}, {"sources": {"mine:Mine": "0123"}}):
        cells = [hashed(0) | {"identity": {"numerics": 1, **own}}]
        write(store, cells, [("failed", [])], name=f"{len(own)}")
        what = "the same `fedray sweep` command runs what is left: 1 cell to train (1 from a checkpoint)"
        more = "; a class of yours that has changed since makes other cells, which begin at round 1" if own else ""
        assert call("status", f"{len(own)}").done.splitlines()[-1] == what + more


def test_rm_leaves_what_another_sweep_shares(store: Tracker, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    """Two sweeps share the first cell: deleting one deletes its own run and its second cell's, which was run twice. The
    other one's deletion is killed after its first run."""
    one, two, three = (cell(FEDAVG, 0.1, seed) for seed in (0, 1, 2))
    write(store, [one, two], [50, 50])
    store.supersede([two["hash"]])
    write(store, [one, two], [None, 50])
    write(store, [one, three], [None, 50], name="other")
    out = call("rm", "sweep", "--yes").done
    assert out.splitlines() == [
        "deletes the sweep's own run",
        f"deletes {two['hash']}  {two['label']} (2 runs)",
        "sweep: 3 runs deleted (1 that another sweep shares stay)",
    ]
    others = search(store.client, store.experiment, "tags.`fedray.kind` != 'environment'")
    left = {run.data.tags.get("fedray.cell", run.info.run_name) for run in others}
    assert left == {"other", one["hash"], three["hash"]}
    (run,) = search(store.client, store.experiment, f"tags.`fedray.cell` = '{three['hash']}'")
    code, out, _ = call("rm", run.info.run_id, "--yes")
    assert (code, out) == (0, f"deletes {three['hash']}  {three['label']}\n{run.info.run_id}: 1 run deleted\n")
    dying = Dying(store.client, 1)
    with monkeypatch.context() as patch:
        patch.setattr("fedray.tracking.store.open_store", lambda: (dying, store.experiment))
        with pytest.raises(Killed):
            call("rm", "other", "--yes")
    assert call("rm", "other", "--yes").out.endswith("deletes the sweep's own run\nother: 1 run deleted\n"), "the last"


def test_an_end_of_file_that_no_prompt_meets_is_shown(monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    """typer takes it for the user's: there was no line at all, and exit code 130."""
    cut = Mock(side_effect=EOFError("a file is cut off"))
    monkeypatch.setattr("fedray.sweep.storage.find_started_sweeps", cut)
    code, _, err = call("status")
    assert (code, err.splitlines()[-1]) == (1, "EOFError: a file is cut off")


@pytest.mark.parametrize("answer", ["n\n", ""], ids=["no", "end of input"])
def test_rm_without_yes_keeps_all(answer: str, store: Tracker, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    write(store, [cell(FEDAVG, 0.1, 0)], [50])
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    code, out, err = call("rm", "sweep")
    assert (code, err) == (1, "")
    assert out.splitlines()[-1].endswith("nothing deleted")
    assert json.loads(call("status", "--json").out)[0]["cells"] == {"finished": 1}


def hashed(seed: int) -> dict[str, Any]:
    """A cell with a hash as real ones have: hexadecimal."""
    return cell(FEDAVG, 0.1, seed) | {"hash": f"{seed + 10:016x}"}


def stored(*hashes: str) -> list[Path]:
    """Folders of cells, 1,000 bytes each."""
    folders = [get_storage() / "cells" / name for name in hashes]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "client-0-1.safetensors").write_bytes(bytes(1000))
    return folders


@contextlib.contextmanager
def held_elsewhere(path: Path, offset: int | None = None) -> Iterator[None]:
    """Lock a file, or a byte of it, in a process of its own."""
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        file = path.open("a+b")
        fcntl.flock(file, fcntl.LOCK_EX) if offset is None else fcntl.lockf(file, fcntl.LOCK_EX, 1, offset)
        os.write(tell, b"x")
        signal.pause()
    os.read(told, 1)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_clean_lists_and_with_yes_removes_what_is_done(store: Tracker, call: Call) -> None:
    """Finished and diverged cells go, and what a killed driver left; others resume from theirs, or are not known.

    What a driver has left whose sweep runs again is in use.
    """
    cells = [hashed(seed) for seed in range(3)]
    write(store, cells, [50, ("diverged", 50), ("failed", 50)])
    finished, diverged, failed, unknown = stored(*(one["hash"] for one in cells), "feedbeef00000000")
    left, used = get_storage() / "tune" / "left", get_storage() / "tune" / "a%b"
    left.mkdir(parents=True)
    used.mkdir()
    with lock_sweep("a/b"):
        out = call("clean").done
    going = {f" 1 kB {finished} (finished)", f" 1 kB {diverged} (diverged)", f"  0 B {left} (left by a killed sweep)"}
    assert {line.removeprefix("    ") for line in out.splitlines()[:3]} == going
    assert out.splitlines()[3:] == [
        *(f"     1 kB stay: 1 cell ({why})" for why in ("failed", "is not in this store")),
        "2 kB in 3 folders would go, trained models with them; --yes removes them",
    ]
    assert all(folder.exists() for folder in (finished, diverged, failed, unknown, left))
    before = len(list(search(store.client, store.experiment, "")))
    with lock_sweep("a/b"):
        assert call("clean", "--yes").done.splitlines()[-1] == "2 kB removed in 3 folders"
    assert not any(folder.exists() for folder in (finished, diverged, left))
    assert all(folder.exists() for folder in (failed, unknown, used))
    assert len(list(search(store.client, store.experiment, ""))) == before


def test_clean_leaves_links_and_what_no_cell_is_called(store: Tracker, tmp_path: Path, call: Call) -> None:
    """A link to a finished cell's folder, a file, and folders whose names are no hashes; the finished cell goes."""
    cells = [hashed(0), hashed(1)]
    write(store, cells, [50] * len(cells))
    (finished,) = stored(cells[0]["hash"])
    elsewhere, root = tmp_path / "elsewhere", get_storage()
    elsewhere.mkdir()
    (elsewhere / "mine").touch()
    for link in (root / "cells" / cells[1]["hash"], root / "tune" / "link"):
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(elsewhere)
    for odd in ("a'b", "a\nb\x1b[31m"):
        (root / "cells" / odd).mkdir()
    (root / "cells" / "file").touch()
    (root / "locks" / "folder").mkdir(parents=True)
    code, out, _ = call("clean", "--yes")
    assert (code, out.splitlines()[0]) == (0, f"     1 kB {finished} (finished)")
    assert "stay: 4 cells (not a cell's folder)" in out
    assert not finished.exists()
    assert (elsewhere / "mine").exists()


def test_clean_never_touches_what_runs_nor_by_name_another_sweep(store: Tracker, call: Call) -> None:
    """A finished cell of a sweep that another process runs, and one that another process runs again."""
    one, two = (hashed(seed) for seed in (0, 1))
    write(store, [one], [50])
    write(store, [two], [50], name="other")
    mine, others = stored(one["hash"], two["hash"])
    with lock_sweep("sweep"), CellLocks(get_cell_locks_file()):
        pass  # makes the files
    of_cell = int(two["hash"], 16) % 2**62
    with held_elsewhere(get_sweep_lock_file("sweep")), held_elsewhere(get_cell_locks_file(), of_cell):
        out = call("clean", "--yes").done
        assert "stay: 1 cell (belongs to a sweep that is running)" in out
        assert "stay: 1 cell (is being run)" in out
        code, out, _ = call("clean", "sweep", "--yes")
        assert (code, mine.exists(), others.exists()) == (0, True, True)
        assert out.splitlines()[-1] == "0 B removed in 0 folders"
    assert (call("clean", "sweep", "--yes").code, (mine.exists(), others.exists())) == (0, (False, True))
    assert call("clean", "--yes").code == 0
    assert not others.exists()


def test_cells_that_a_changed_file_has_no_more_are_told_and_deleted(store: Tracker, call: Call) -> None:
    """Three cells finished; then the file kept one, had a new one, and another sweep took over one. The one that is
    left, and no other, is told by the plan, status and tables, and goes with --unlisted."""
    kept, gone, shared, new = (cell(FEDAVG, 0.1, seed) for seed in range(4))
    write(store, [kept, gone, shared], [50, 60, 70])
    assert "of this name" not in call("status", "sweep").out
    Path("f.yaml").write_text(yaml.safe_dump({"name": "sweep", "base": sections(runtime={})}))
    planned = call("sweep", "f.yaml", "--dry-run").out
    assert "sweep: 1 cell, 0 finished" in planned
    assert "sweep: 3 finished cells of this name are not among these" in planned
    assert "another `name`" in planned
    write(store, [shared], [None], name="other")
    assert "sweep: 2 finished cells of this name are not among these" in call("sweep", "f.yaml", "--dry-run").out
    write(store, [kept, new], [None, 80])
    said = "sweep: 1 finished cell of this name is not among these; tables leave them out: the file, a plug-in's "
    for command in (("status", "sweep"), ("tables", "sweep")):
        assert said in call(*command).out, command
    deleted = f"deletes {gone['hash']}  {gone['label']}\nsweep: 1 run deleted\n"
    assert call("rm", "sweep", "--unlisted", "--yes").out == deleted
    assert said not in call("tables", "sweep").out
    assert call("rm", "sweep", "--yes").out.endswith("sweep: 3 runs deleted\n"), "its own, and those of its two cells"
    assert [run.data.tags["fedray.cell"] for run in find_runs(store.client, store.experiment, [shared["hash"]])]


def test_the_view_of_a_sweep_has_the_cells_of_its_file_whoever_ran_them(store: Tracker) -> None:
    """Also for a sweep all of whose cells others ran, and for runs of a version that did not mark them."""
    cells = [cell(FEDAVG, 0.1, seed) for seed in range(4)]
    write(store, cells[:3], [50, 60, 70])
    write(store, cells[1:2], [], name="of/others")
    old = {run.data.tags["fedray.cell"]: run for run in search(store.client, store.experiment, IS_CELL)}
    store.client.delete_tag(old[cells[0]["hash"]].info.run_id, f"{LISTED}sweep")

    def shown(sweep: str) -> set[str]:
        save_view(sweep)
        view = json.loads(store.client.get_experiment(store.experiment).tags[f"mlflow.sharedViewState.{sweep}"])
        return {run.data.tags["fedray.cell"] for run in search(store.client, store.experiment, view["searchFilter"])}

    assert (shown("sweep"), shown("of/others")) == ({one["hash"] for one in cells[:3]}, {cells[1]["hash"]})
    write(store, [cells[0], cells[3]], [None, 80])
    marked = search(store.client, store.experiment, f"tags.`{LISTED}sweep` = 'yes'")
    assert {run.data.tags["fedray.cell"] for run in marked} == {cells[0]["hash"], cells[3]["hash"]}, "an open page, too"
    assert shown("sweep") == {cells[0]["hash"], cells[3]["hash"]}
    write(store, cells[:1], [], name="fedray")
    assert not {*save_view("fedray").values()} & {*save_view().values()}, "the experiment has this name, too"


def test_the_view_of_a_sweep_tells_its_runs_apart(store: Tracker) -> None:
    """Names begin with what differs; a method has a colour, its values shades. Columns and parallel coordinates are the
    parameters that vary, beside the sweep's number; a method without ρ stands at `none`, not beside the largest."""
    cells = [cell(algorithm, alpha, 0) for alpha in (0.1, 0.5) for algorithm in (FEDAVG, SMALL, LARGE)]
    for one in cells:
        method, partition = one["config"]["algorithm"], one["config"]["partition"]
        rho = f" ρ={method['rho']}" if "rho" in method else ""
        one["label"] = f"{method['name']}{rho} dirichlet({partition['alpha']}) s0"
    write(store, cells, [rows(lr=(0.1, 0.2), test_macro_f1=(1.0, 2.0))] * 6)
    of_store = list(search(store.client, store.experiment, IS_CELL))
    save_view("sweep")
    save_view("sweep")
    runs = {run.info.run_name: run.data for run in search(store.client, store.experiment, IS_CELL)}
    assert list(runs)[::-1] == [
        *("dirichlet(0.1) fedavg s0", "ρ=0.1 dirichlet(0.1) fedsam s0", "ρ=0.5 dirichlet(0.1) fedsam s0"),
        *("dirichlet(0.5) fedavg s0", "ρ=0.1 dirichlet(0.5) fedsam s0", "ρ=0.5 dirichlet(0.5) fedsam s0"),
    ]
    assert {get_label(run) for run in of_store} == {one["label"] for one in cells}
    colours = [data.tags["mlflow.runColor"] for data in list(runs.values())[::-1]]
    assert (colours[:3], len({*colours})) == (colours[3:], 3)
    assert [data.params["algorithm.rho"] for data in list(runs.values())[::-1]] == ["none", "0.1", "0.5"] * 2
    assert [data.params["ρ of algorithm"] for data in list(runs.values())[::-1]] == ["none", "ρ=0.1", "ρ=0.5"] * 2
    view = json.loads(store.client.get_experiment(store.experiment).tags["mlflow.sharedViewState.sweep"])
    opened = {one["uuid"] for one in view["compareRunSections"] if one["display"]}
    charts = [chart for chart in view["compareRunCharts"] if chart["metricSectionId"] in opened]
    axes = ["algorithm.name", "algorithm.rho", "partition.alpha"]
    assert [(chart["type"], chart.get("metricKey", chart.get("selectedParams"))) for chart in charts] == [
        *(("LINE", "test_accuracy"), ("SCATTER", None), ("SCATTER", None), ("LINE", "test_loss")),
        *(("PARALLEL", [axes[0], "ρ of algorithm", axes[2]]), ("BAR", "summary/last10_test_accuracy")),
    ]
    names = [one["name"] for one in view["compareRunSections"] if one["display"]]
    assert names == ["last10_test_accuracy: round 2", "Parallel coordinates and bars"]
    assert [chart["xaxis"]["key"] for chart in charts if chart["type"] == "SCATTER"] == [axes[1], axes[0]]
    folded = [chart["metricKey"] for chart in view["compareRunCharts"] if chart["metricSectionId"] not in opened]
    assert folded == ["lr", "test_macro_f1", "train_loss"]
    columns = [f"params.`{key}`" for key in axes]
    assert view["selectedColumns"] == [*columns, "metrics.`summary/last10_test_accuracy`", "tags.`fedray.status`"]


def test_what_some_cells_leave_out_varies_and_a_view_fits_into_a_tag(store: Tracker) -> None:
    """A chart of each of 100 metrics takes more than the 20,000 characters that MLflow allows."""
    cells = [cell(FEDAVG, 0.1, seed) for seed in (0, 1)]
    cells[1]["config"]["training"] = {"clip_norm": 10}
    write(store, cells, [rows(**{f"class {k}": (1.0, 2.0) for k in range(100)})] * 2)
    save_view("sweep")
    text = store.client.get_experiment(store.experiment).tags["mlflow.sharedViewState.sweep"]
    view = json.loads(text)
    assert 19_000 < len(text) <= 20_000
    assert view["compareRunCharts"][0]["metricKey"] == "test_accuracy"
    assert "class 0" in {one.get("metricKey") for one in view["compareRunCharts"]}, "a space is allowed"
    assert view["selectedColumns"][:2] == ["params.`training.clip_norm`", "params.`seed`"]


def test_json_for_programs(store: Tracker, call: Call) -> None:
    """Each command that says what there is prints the same as one JSON object or list."""
    cells = [cell(algorithm, 0.1, seed) for algorithm in (FEDAVG, SMALL) for seed in (0, 1)]
    write(store, cells, [50, 60, 70, ("failed", [])])
    Path("f.yaml").write_text(yaml.safe_dump({"name": "x", "base": sections(runtime={})}))

    def read(*arguments: str) -> Any:
        out = call(*arguments, "--json").done
        return json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))

    assert [one["status"] for one in read("status", "sweep")["cells"]] == [*["finished"] * 3, "failed"]
    assert read("status") == [{"name": "sweep", "cells": {"finished": 3, "failed": 1}, "running": False}]
    entries = {entry["row"]: entry for entry in read("tables", "sweep")["entries"]}
    assert (entries["fedavg"]["mean"], entries["fedsam"]["others"]) == (55.0, {"failed": 1})
    (difference,) = read("compare", "sweep", "--reference", "fedavg")["differences"]
    assert (difference["row"], difference["gaps"]) == ("fedsam", [20.0])
    (never,) = read("compare", "sweep", "--reference", "fedavg", "--metric", "rounds_to:65")["differences"]
    assert (never["n"], never["mean"]) == (0, None), "fedavg never gets there"
    entries = read("tables", "sweep", "--metric", "rounds_to:65")["entries"]
    assert {one["row"]: one["mean"] for one in entries} == {"fedavg": None, "fedsam": 1.0}
    (planned,) = read("sweep", "f.yaml", "--dry-run")["cells"]
    assert (planned["to_run"], len(planned["hash"])) == (True, 16)
    write(store, [cells[0] | {"hash": planned["hash"]}], [50], name="other")
    assert read("sweep", "f.yaml", "--dry-run")["cells"] == [planned | {"to_run": False, "status": "finished"}]
    assert "fedavg" in read("list", "algorithms")
    assert call("sweep", "f.yaml", "--json").code == 2


def test_runs_of_others_enter_nothing_and_stay(store: Tracker, call: Call) -> None:
    """A run of one's own in fedray's experiment, with the metric that tables show and the label of a cell."""
    cells = [cell(FEDAVG, 0.1, seed) for seed in (0, 1)]
    write(store, cells, [50, 60])
    commands = (("tables", "sweep"), ("status", "sweep"), ("status",), ("compare", "sweep", "--reference", "fedavg"))
    before = [call(*command).out for command in commands]
    foreign = store.client.create_run(store.experiment, run_name=cells[0]["label"]).info.run_id
    store.client.log_metric(foreign, "summary/last10_test_accuracy", 99.0, step=1)
    assert ([call(*command).out for command in commands], call("rm", foreign, "--yes").code) == (before, 2)
    assert call("rm", "sweep", "--yes").out.endswith("sweep: 3 runs deleted\n")
    assert store.client.get_run(foreign).info.lifecycle_stage == "active"


EVERYWHERE = "0.0.0.0"  # noqa: S104 (asked for, and refused: the server here is on 127.0.0.1)


@pytest.mark.parametrize(("same", "host"), [(True, EVERYWHERE), (False, "127.0.0.1")])
def test_a_second_ui(same: bool, host: str, store: Tracker, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    """It has the newest sweep of this store; at the port of another store's the call is refused. A browser finds what
    is bound to all addresses by the machine's name, as after the first call."""
    run = store.open_sweep(Sheet("sweep", {}))
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("a second server starts"))

    class Runs(Quiet):
        def do_GET(self) -> None:
            self.send_response(200 if same and self.path == f"/api/2.0/mlflow/runs/get?run_id={run}" else 404)
            self.end_headers()

    with serving(Runs) as server:
        code, out, err = call("ui", "sweep", "--port", str(server.server_port), "--host", host)
    if same:
        assert (code, err) == (0, "")
        place = f"http://{socket.gethostname() if host == EVERYWHERE else host}:{server.server_port}"
        assert out.startswith(f"MLflow, which is running, shows the runs at {place}/#/experiments/1/runs?")
        assert out.count(f": {place}/#/") == 1, "the sweep's own page"
    else:
        assert (code, out) == (2, "")
        assert "cannot be listened at: Address already in use" in err
