"""Copies for TensorBoard and Weights & Biases, read back with their own readers, none of which can disturb MLflow; and
runs of means over seeds, which `fedray ui SWEEP` writes for MLflow's charts."""

import json
import logging
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedray.analysis.data.collect import collect
from fedray.analysis.tables.build import build
from fedray.cells.cell import Cell
from fedray.cells.metric import DEFAULT
from fedray.cells.record import Record
from fedray.cells.status import Ending, Status
from fedray.tracking import mirrors
from fedray.tracking.outbox import CellRun
from fedray.tracking.store import IS_CELL, open_store, search, select_means
from fedray.tracking.tracker import Tracker
from fedray.tracking.view import save_view
from tests.analysis.runs import FEDAVG, SMALL, cell, history, write
from tests.bad_input.case import BASE
from tests.conftest import Call, Hide

pytestmark = pytest.mark.usefixtures("nowhere")
HASHES = ("0123456789abcdef", "fedcba9876543210")


@pytest.fixture
def here(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    return project


def copy(*kinds: str, cells: tuple[str, ...] = HASHES[:1]) -> list[CellRun]:
    """Write cells of three rounds, of which the second and the third are sent twice, and wait."""
    tracker, rows, runs = Tracker(), history(60, 70, 75), []
    for one in cells:
        config = {"seed": 0, "algorithm": {"name": "fedavg"}, "runtime": {"mirror": list(kinds)}}
        runs.append(CellRun(Cell(one, "fedavg α=1/2 s0", config), {"fedray.sweep": "some/sweep"}))
        tracker.open_cell(runs[-1])
        tracker.log_rows(runs[-1], rows[:1])
        tracker.log_rows(runs[-1], rows)  # a trial that starts again sends all rows so far
        tracker.close_cell(runs[-1], Record(Ending(Status.FINISHED), rows))
    tracker.close()
    return runs


def logged(run: CellRun) -> list[float]:
    """The accuracies that MLflow has of a finished run."""
    client, _ = open_store()
    assert client.get_run(run.id).info.status == "FINISHED"
    return [point.value for point in client.get_metric_history(run.id, "test_accuracy")]


def test_tensorboard_shows_each_round_once_also_after_a_second_call(here: Path) -> None:
    """Summaries of rounds with 60, 70 and 75 %: of so short a run the last round alone counts (a fifth of 3)."""
    for _ in range(2):
        copy("tensorboard")
    (file,) = here.glob(".fedray/tensorboard/**/events*")
    assert file.parent == here / ".fedray/tensorboard/some/sweep" / f"fedavg α=1_2 s0 {HASHES[0]}"
    found = EventAccumulator(str(file.parent))
    found.Reload()
    assert [(event.step, event.value) for event in found.Scalars("test_accuracy")] == [(1, 60), (2, 70), (3, 75)]
    assert [event.value for event in found.Scalars("summary/last10_test_accuracy")] == [75]
    assert b"name: fedavg" in found.Tensors("configuration/text_summary")[0].tensor_proto.string_val[0]


def test_wandb_works_offline_and_keeps_one_run_per_cell(here: Path) -> None:
    """Its own reader, `wandb leet inspect`, prints a line of JSON per record."""
    for _ in range(2):
        copy("wandb")
    (folder,) = here.glob(".fedray/wandb/offline-run-*")
    read = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(folder)]
    lines = subprocess.run(read, capture_output=True, check=True, text=True).stdout.splitlines()
    rows = [one["history"]["item"] for one in map(json.loads, lines) if one["type"] == "history"]
    assert [(row["_step"], row["test_accuracy"]) for row in rows] == [(1, 60), (2, 70), (3, 75)]
    found = json.loads(subprocess.run([*read, "--summary"], capture_output=True, check=True, text=True).stdout)
    assert (found["project"], found["run_id"], found["exit_code"]) == ("fedray", HASHES[0], 0)
    assert found["config"]["algorithm"]["name"] == "fedavg"
    assert (found["summary"]["last10_test_accuracy"], found["summary"]["status"]) == (75, "finished")


def test_one_that_fails_says_so(here: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The first cell's first row fails; the second cell is not tried again. The other viewer goes on."""
    calls = []

    def fail(self: mirrors.TensorboardCopy, rows: Any) -> None:
        calls.append(rows)
        raise OSError(28, "No space left on device")

    class Other:
        def __init__(self, cell: Cell, sweep: str, storage: Path) -> None:
            calls.append(cell.hash)

        def write(self, rows: Any) -> None: ...

        def close(self, record: Record) -> None: ...

    monkeypatch.setattr(mirrors.TensorboardCopy, "write", fail)
    monkeypatch.setitem(mirrors.COPIES, "wandb", Other)
    with caplog.at_level(logging.WARNING, "fedray"):
        runs = copy("tensorboard", "wandb", cells=HASHES)
    assert [logged(run) for run in runs] == [[60, 70, 75]] * 2
    assert [record.getMessage() for record in caplog.records] == [
        "runtime.mirror: tensorboard failed (OSError: [Errno 28] No space left on device); its copy ends here, "
        "MLflow has everything"
    ]
    assert calls.count(HASHES[1]) == 1
    assert len(calls) == 3, "one write that failed, and both cells of the other viewer"


def test_one_that_hangs_is_left(here: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()
    monkeypatch.setattr(mirrors.TensorboardCopy, "write", lambda self, rows: release.wait(60) and None)
    monkeypatch.setattr(mirrors, "PATIENCE", 0.1)
    (run,) = copy("tensorboard")
    assert logged(run) == [60, 70, 75]
    assert caplog.messages == ["runtime.mirror: tensorboard takes longer than 0 s; its copy is incomplete"]
    release.set()


def test_an_extra_that_is_not_installed(here: Path, empty_store: Path, call: Call, hide_package: Hide) -> None:
    """One line and exit code 2 before anything starts: the store is untouched, no lock or folder comes into being."""
    (here / "sweep.yaml").write_text(yaml.safe_dump({"name": "x", "base": BASE | {"runtime": {"mirror": ["wandb"]}}}))
    before = sorted(here.rglob("*"))
    hide_package("wandb")
    code, _, err = call("sweep", "sweep.yaml")
    assert (code, err) == (2, "fedray: runtime.mirror: wandb is not installed; pip install 'fedray[wandb]' adds it\n")
    assert sorted(here.rglob("*")) == before
    assert (here / "mlflow.db").read_bytes() == empty_store.read_bytes()


def labelled(algorithm: dict[str, Any], alpha: float, seed: int) -> dict[str, Any]:
    """A cell with a label as fedray writes it."""
    rho = f" ρ={algorithm['rho']}" if "rho" in algorithm else ""
    return cell(algorithm, alpha, seed) | {"label": f"{algorithm['name']}{rho} dirichlet({alpha}) s{seed}"}


CELLS = [labelled(method, alpha, seed) for alpha in (0.1, 0.5) for method in (FEDAVG, SMALL) for seed in (0, 1, 2)]
FIRST = (93.1, 93.2, 93.4)
"""Their mean is 93.2333."""


def find_means(store: Tracker) -> dict[str, Any]:
    return {run.info.run_name: run for run in search(store.client, store.experiment, select_means("sweep"))}


def read_curve(store: Tracker, run: Any, name: str = "test_accuracy") -> list[tuple[int, float]]:
    return sorted((point.step, point.value) for point in store.client.get_metric_history(run.info.run_id, name))


def test_a_setting_has_a_run_of_its_seeds_means(store: Tracker) -> None:
    """Two rounds: 50 and 60, 52 and 64 give 51 and 62. A third seed that failed, or ended early, does not count; a
    setting with one finished seed has no mean. The number is that of the table, in six digits."""
    two = [history(50, 60), history(52, 64), ("failed", history(0, 0))]
    write(store, CELLS, [*two, *FIRST, history(1, 2), None, ("stopped", history(7)), *two])
    save_view("sweep")
    means = find_means(store)
    assert set(means) == {"dirichlet(0.1) fedavg", "dirichlet(0.1) fedsam", "dirichlet(0.5) fedsam"}
    assert read_curve(store, means["dirichlet(0.1) fedavg"]) == [(1, 51), (2, 62)]
    data = means["dirichlet(0.1) fedavg"].data
    names = ("algorithm.name", "dirichlet 0.1: algorithm.name")
    assert data.params == dict.fromkeys(names, "fedavg") | {"partition.alpha": "0.1"}
    assert data.tags["fedray.status"] == "1 failed, 2 finished"
    assert data.tags["mlflow.note.content"] == "Mean of 2 seeds: dirichlet(0.1) fedavg s0, dirichlet(0.1) fedavg s1"
    first = next(search(store.client, store.experiment, f"{IS_CELL} AND tags.`fedray.cell` = '{CELLS[0]['hash']}'"))
    assert data.tags["mlflow.runColor"] == first.data.tags["mlflow.runColor"]
    shown = {float(f"{entry.mean:.6g}") for entry in build(collect("sweep"), DEFAULT).entries.values() if entry.mean}
    assert means["dirichlet(0.1) fedsam"].data.metrics[f"summary/{DEFAULT}"] == 93.2333
    # 93.1, 93.2 and 93.4 are 0.1333, 0.0333 and 0.1667 from it: the squares' sum, 0.046667, halved.
    assert means["dirichlet(0.1) fedsam"].data.metrics[f"summary/{DEFAULT}_over_seeds"] == 0.152753
    for run in means.values():
        assert run.data.metrics[f"summary/{DEFAULT}"] in shown
    view = json.loads(store.client.get_experiment(store.experiment).tags["mlflow.sharedViewState.sweep"])
    assert f"metrics.`summary/{DEFAULT}_over_seeds`" in view["selectedColumns"]
    assert "; 3 of 4 settings have a mean at " in view["compareRunSections"][0]["name"]


def test_means_have_views_and_runs_stay_the_runs(store: Tracker, call: Call) -> None:
    """The first view is that of the means; each setting has one; nothing else in fedray counts them as runs."""
    write(store, CELLS, [50.0] * 12)
    before = call("status", "sweep").out, call("tables", "sweep").out
    addresses = save_view("sweep")
    settings = [f"means with dirichlet({alpha})" for alpha in (0.1, 0.5)]
    assert [*addresses][:-1] == ["means over seeds", "all runs", *settings]
    tags = store.client.get_experiment(store.experiment).tags
    numbers = ("", ":1", ":2", ":3")
    filters = [json.loads(tags[f"mlflow.sharedViewState.sweep{number}"])["searchFilter"] for number in numbers]
    assert [len(list(search(store.client, store.experiment, filter))) for filter in filters] == [4, 12, 2, 2]
    views = [json.loads(tags[f"mlflow.sharedViewState.sweep{number}"]) for number in numbers]
    charts = [[one["metricKey"] for one in view["compareRunCharts"] if one["type"] == "LINE"] for view in views]
    both, ends = ["test_accuracy", "test_loss"], (" dirichlet 0.1", " dirichlet 0.5")
    assert charts == [[f"{name}{end}" for name in both for end in ends] + both, [*both, "train_loss"], both, both]
    by = [[one["xaxis"]["key"] for one in view["compareRunCharts"] if one["type"] == "SCATTER"] for view in views]
    assert by[0] == [f"dirichlet {alpha}: algorithm.name" for alpha in (0.1, 0.5)]
    assert by[1:] == [["algorithm.name"]] * 3
    for run in find_means(store).values():
        end = f" dirichlet {run.data.params['partition.alpha']}"
        again = {name for name in run.data.metrics if "dirichlet" in name}
        assert again == {f"test_accuracy{end}", f"test_loss{end}"}, "once more, for its charts"
        assert read_curve(store, run, f"test_accuracy{end}") == read_curve(store, run) != []
    assert (call("status", "sweep").out, call("tables", "sweep").out) == before


def test_a_setting_without_a_mean_has_no_chart_there(store: Tracker) -> None:
    write(store, CELLS, [*FIRST, *FIRST, ("diverged", 9)])
    save_view("sweep")
    view = json.loads(store.client.get_experiment(store.experiment).tags["mlflow.sharedViewState.sweep"])
    ends = {str(one.get("xaxis", {}).get("key", one.get("metricKey"))) for one in view["compareRunCharts"]}
    assert not [end for end in ends if "dirichlet 0.5" in end]
    assert {"test_accuracy dirichlet 0.1", "dirichlet 0.1: algorithm.name"} <= ends


def test_means_follow_their_runs(store: Tracker, call: Call) -> None:
    """A second call writes nothing; a third seed makes the mean anew; a cell that left the file takes its mean along;
    `fedray rm` deletes them with the sweep."""
    write(store, CELLS[:6], [50, 60, None, 70, 80, None])
    save_view("sweep")
    old = find_means(store)
    save_view("sweep")
    ids = [{name: run.info.run_id for name, run in found.items()} for found in (old, find_means(store))]
    assert ids[0] == ids[1]
    write(store, CELLS[:6], [None, None, 100])
    save_view("sweep")
    new = find_means(store)
    assert read_curve(store, new["fedavg"]) == [(1, 70)]
    assert new["fedsam"].info.run_id == old["fedsam"].info.run_id
    write(store, CELLS[:3], [])
    save_view("sweep")
    assert [*find_means(store)] == ["fedavg"]
    assert "mean of fedavg dirichlet(0.1)" in call("rm", "sweep", "--yes").out
    assert not find_means(store)
