"""Whole sweeps through the command line, real Ray and real MLflow: killed, called again, with cells that diverge. Only
what kills the driver needs a process of its own; the others are called in this one, on one Ray."""

import contextlib
import io
import json
import os
import shutil
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mlflow import MlflowClient

import fedray
from fedray.cli import main as cli
from fedray.cluster.resources import list_nodes
from fedray.common.errors import UserError
from fedray.tracking.store import get_label, open_reader, search, select_means
from fedray.tracking.view import save_view
from tests.conftest import Call, each, work_in
from tests.small import sections
from tests.sweep.running import SWEEP, outcome, runs, start, state_hashes, until, write


@pytest.fixture(scope="module")
def finished(local_ray: None, tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    """A folder in which the small sweep has run undisturbed."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
        work_in(folder, patch, empty_store)
        patch.setattr("sys.argv", ["fedray", "sweep", str(write(folder, SWEEP)), "--max-concurrent", "1"])
        patch.setattr("fedray.sweep.run.list_nodes", lambda: [node | {"GPU": 1.0} for node in list_nodes()])
        with pytest.raises(SystemExit, match="0"):
            cli.main()
    assert "small: no cell uses a GPU, and there is 1: runtime.gpus_per_actor is 0; " in out.getvalue()
    assert "small: 4 finished" in out.getvalue()
    for run in runs(folder):
        shown = f"{run.data.metrics['summary/last10_test_accuracy']:.2f} %, mean of rounds 11 to 12 ("
        assert any(get_label(run) in line and shown in line for line in out.getvalue().splitlines())
    return folder


def test_a_second_call_has_nothing_to_run(finished: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    before = state_hashes(finished)
    monkeypatch.chdir(finished)
    with torch.inference_mode(), torch.device("meta"):  # settings of a caller of `run_sweep`
        out = call("sweep", "sweep.yaml").out
    assert "4 cells, 4 finished, 0 diverged, 0 to run" in out
    assert "[1/" not in out
    assert state_hashes(finished) == before


def test_killed_half_way_ends_as_an_undisturbed_one(finished: Path, local_ray: None, project: Path, call: Call) -> None:
    """SIGKILL of the driver when one cell has finished and another one is on its way."""
    driver = start(project, SWEEP, "--max-concurrent", "1")
    until(driver, "finished", "[1/4]")
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait(timeout=10)
    driver.communicate()
    statuses = Counter(run.info.status for run in runs(project))
    assert statuses["FINISHED"] < 4, "it was killed too late to show anything"
    checkpoints = project.glob(".fedray/cells/*/checkpoint-*.json")
    begun = {path.parent for path in checkpoints if path.stem != "checkpoint-12"}
    out = call("sweep", "sweep.yaml", "--max-concurrent", "1").out
    assert "small: 4 finished" in out
    assert out.count(": resumed, goes on with round ") <= len(begun)  # its process may end a cell after its driver
    assert state_hashes(project) == state_hashes(finished)
    for run in runs(project):
        client = MlflowClient(tracking_uri=f"sqlite:///{project / 'mlflow.db'}")
        steps = [metric.step for metric in client.get_metric_history(run.info.run_id, "test_accuracy")]
        assert sorted(set(steps)) == list(range(1, 13)), "every evaluated round is logged"
        rows = (project / ".fedray/cells" / run.data.tags["fedray.cell"] / "rows.jsonl").read_text().splitlines()
        assert [json.loads(row)["round"] for row in rows] == list(range(1, 13)), "none twice, none lost"


def test_an_interrupt_ends_a_call_from_python(finished: Path, local_ray: None, project: Path) -> None:
    """Tune takes the signal and returns; a notebook's next cell must not run with half of the results."""

    def interrupt() -> None:
        while not list(project.glob(".fedray/cells/*/checkpoint-*.json")):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        fedray.run_sweep(SWEEP, max_concurrent=1)
    assert Counter(run.info.status for run in runs(project))["FINISHED"] < 4
    assert fedray.run_sweep(SWEEP).cells["status"].tolist() == ["finished"] * 4
    assert state_hashes(project) == state_hashes(finished)


def test_a_tune_stage_that_failed_is_no_result(local_ray: None, project: Path) -> None:
    """Of an earlier call with other draws there may be a final stage under the name."""
    tuned = {"name": "tuned", "base": SWEEP["base"], "samples": 1, "tune": {"seeds": [0]}, "final": {"seeds": [1]}}
    search = {"grid": {"algorithm": ["tests.plugins:Raises"]}, "search": {"training.lr": {"choice": [0.1, 0.01]}}}
    said = r"^run_sweep: tuned/tune: cells failed, so that nothing was chosen; `fedray st"
    with pytest.raises(UserError, match=said):
        fedray.run_sweep(tuned | search)


def test_what_mlflow_holds(finished: Path, tmp_path: Path) -> None:
    client = MlflowClient(tracking_uri=f"sqlite:///{finished / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("fedray")
    everything = client.search_runs([experiment.experiment_id])
    parents = [run for run in everything if run.data.tags["fedray.kind"] == "sweep"]
    assert [run.info.run_name for run in parents] == ["small"]
    run = next(run for run in runs(finished) if run.data.tags["algorithm"] == "scaffold")
    assert run.data.tags["mlflow.parentRunId"] == parents[0].info.run_id
    assert run.info.run_name.startswith("scaffold s"), "the partition is the same for all"
    assert run.data.params["training.lr"] == "0.1"
    assert run.data.params["partition.alpha"] == "0.5"
    artefacts = {artifact.path for artifact in client.list_artifacts(run.info.run_id)}
    assert artefacts == {"config.yaml", "partition.png", "partition.npz", "confusion.csv"}
    path = client.download_artifacts(run.info.run_id, "confusion.csv", str(tmp_path))
    counts = np.loadtxt(path, delimiter=",", skiprows=1)[:, 1:]
    assert counts.sum() == 360, "the test images of digits"
    assert 100 * np.trace(counts) / 360 == pytest.approx(run.data.metrics["test_accuracy"])
    history = client.get_metric_history(run.info.run_id, "test_accuracy")
    values = [metric.value for metric in sorted(history, key=lambda metric: metric.step)]
    assert run.data.metrics["summary/final_test_accuracy"] == values[-1]
    assert run.data.metrics["summary/last10_test_accuracy"] == pytest.approx(sum(values[10:]) / 2)  # 12 // 5 rounds
    assert run.data.metrics["summary/best_test_accuracy"] == max(values)


ONE_OF_EACH = {
    "name": "each",
    "base": SWEEP["base"] | {"training": {"rounds": 9, "local_epochs": 1, "batch_size": 50}},
    "cases": [
        *({"algorithm": "fedavg", "training.lr": lr} for lr in (0.1, 0.01, 0.001, 1.0e20)),
        {"algorithm": "tests.plugins:Raises", "training.lr": 0.1},
    ],
}


@each(
    {"stop": {"round": 3}},
    pytest.param({"scheduler": {"name": "median", "metric": "test_accuracy"}}, marks=pytest.mark.faults),
    pytest.param({"scheduler": {"name": "asha", "metric": "test_accuracy"}}, marks=pytest.mark.faults),
)
def test_stopped_diverged_and_failing_cells(rule: dict[str, Any], local_ray: None, project: Path, call: Call) -> None:
    """Cells stopped early, one that diverges in round 1 and one whose code raises do not disturb the others. lr = 1e20:
    one step makes the weights about 1e18, and the losses of the second are not finite. The cells that a scheduler
    prunes depend on their order; `stop` ends all three that can be trained."""
    code, out, _ = call("sweep", str(write(project, ONE_OF_EACH | rule)), "--max-concurrent", "2")
    assert code == 1
    assert "`fedray status each` says why cells failed\n" in out
    found = outcome(project)
    failed = "raises dirichlet(0.5) lr=0.1 s0"
    assert found.pop(failed) == "failed"
    assert found.pop("fedavg dirichlet(0.5) lr=1e+20 s0") == "diverged"
    assert set(found.values()) <= ({"stopped"} if "stop" in rule else {"finished", "pruned"})
    assert {run.info.status for run in runs(project)} <= {"FINISHED", "FAILED"}
    bad = next(run for run in runs(project) if run.data.tags["fedray.status"] == "diverged")
    assert bad.info.status == "FAILED"
    assert bad.data.metrics["summary/diverged_round"] == 1
    assert "diverged in round 1, client" in bad.data.tags["fedray.message"]
    assert "(1 diverged)" in call("tables", "each", "--rows", "training.lr").out
    raised = next(run for run in runs(project) if get_label(run) == failed)
    said = "algorithm: tests.plugins:Raises raises ZeroDivisionError: on purpose (plugins.py:"
    assert raised.data.tags["fedray.message"].startswith(said)
    client = MlflowClient(tracking_uri=f"sqlite:///{project / 'mlflow.db'}")
    assert "traceback.txt" in {artifact.path for artifact in client.list_artifacts(raised.info.run_id)}
    assert "ZeroDivisionError: on purpose" in out
    if "stop" in rule:  # the same rule again: only the failed cell is tried again; without it, the stopped ones go on
        assert "1 diverged, 1 to run" in call("sweep", "sweep.yaml", "--dry-run").out
        write(project, ONE_OF_EACH | {"name": "whole"})
        assert "4 to run" in call("sweep", "sweep.yaml", "--dry-run").out


def test_force_replaces_and_supersedes(finished: Path, local_ray: None, project: Path, call: Call) -> None:
    """A forced cell gets a run of its own from round 1 on; the earlier one no longer counts. Means over seeds that
    MLflow has for its charts are those of the new runs as soon as the call has ended."""
    for name in ("mlflow.db", "mlruns", "mlartifacts", ".fedray", "sweep.yaml"):
        if (source := finished / name).exists():
            (shutil.copytree if source.is_dir() else shutil.copy)(source, project / name)
    before = state_hashes(finished)
    save_view("small")
    means = find_means()
    assert call("sweep", "sweep.yaml", "--force", "--only", "scaffold*s0").code == 0
    assert {name for name, run in find_means().items() if means[name] != run} == {"scaffold"}
    found = [run for run in runs(project) if get_label(run) == "scaffold dirichlet(0.5) s0"]
    assert sorted(run.data.tags["fedray.status"] for run in found) == ["finished", "superseded"]
    assert {run.data.tags.get("fedray.state_sha256") for run in found} == {before[found[0].data.tags["fedray.cell"]]}
    assert "0 to run" in call("sweep", "sweep.yaml", "--dry-run").out


def find_means() -> dict[str, str]:
    client, experiment = open_reader()
    return {run.info.run_name: run.info.run_id for run in search(client, experiment, select_means("small"))}


ROUNDS = 8
FILE: dict[str, Any] = {
    "name": "halved",
    "base": SWEEP["base"]
    | {
        "data": {"name": "digits", "validation": {"fraction": 0.2}},
        "algorithm": "fedavg",
        "training": {"rounds": ROUNDS, "local_epochs": 2, "batch_size": 20},
    },
    "grid": {"training.lr": [0.5, 0.3, 0.2, 1.0e-6, 2.0e-6]},
}


@each(
    # Rungs at 2 and 2 x 2; the first cell has no rival, and the worse half of two ends.
    ({"name": "asha", "grace": 2, "factor": 2}, 2),
    # From round 3 on, since three others have been there.
    pytest.param({"name": "median", "grace": 3}, 3, marks=pytest.mark.faults),
)
def test_laggards_are_pruned(scheduler: dict[str, Any], last: int, local_ray: None, project: Path, call: Call) -> None:
    file = write(project, FILE | {"scheduler": scheduler})
    out = call("sweep", str(file), "--max-concurrent", "1").done
    client = MlflowClient(tracking_uri=f"sqlite:///{project / 'mlflow.db'}")
    ended = {}
    for run in runs(project):
        rounds = [metric.step for metric in client.get_metric_history(run.info.run_id, "validation_accuracy")]
        ended[float(run.data.params["training.lr"])] = run.data.tags["fedray.status"], max(rounds)
    assert ended[0.5] == ("finished", ROUNDS)
    assert ended[1e-6] == ended[2e-6] == ("pruned", last)
    pruned = sum(status == "pruned" for status, _ in ended.values())
    assert f"{pruned} pruned" in out
    assert "0 to run" in call("sweep", "sweep.yaml", "--dry-run").out, "what it has ended is done"


EDITED = """
from pathlib import Path
from fedray.algorithms.fedavg import FedAvg
from helper import FACTOR

class Edited(FedAvg):
    def begin(self, c):
        Path(__file__).with_name("helper.py").unlink(missing_ok=True)
        Path(__file__).write_text("raise SystemExit")

    def direction(self, c):
        return FACTOR * c.grad(c.theta)
"""


def test_a_sweep_runs_the_code_that_it_began_with(local_ray: None, project: Path, call: Call) -> None:
    """Its files change in the first step of the tune stage: they are edited or gone when the final stage is planned,
    and when its trials and actors, new processes, import the class."""
    (project / "edited.py").write_text(EDITED)
    (project / "helper.py").write_text("FACTOR = 0.5\n")
    base = sections("edited:Edited", training={"rounds": 2, "lr": 0.1})
    sweep = {
        "name": "edited", "base": base | {"runtime": {"actors": 2}},
        "tune": {"seeds": [1], "validation": {"fraction": 0.2}}, "search": {"training.momentum": {"choice": [0.0]}},
        "samples": 1, "final": {"seeds": [0]},
    }  # fmt: skip
    assert call("sweep", str(write(project, sweep))).done.count("1 finished") == 2, "the tune stage and the final one"
    assert (project / "edited.py").read_text() == "raise SystemExit"
    halved = fedray.simulate(base | {"algorithm": "fedavg", "training": {"rounds": 2, "lr": 0.05}, "seed": 0})
    found = {run.data.tags["fedray.sweep"]: run.data.tags["fedray.theta_sha256"] for run in runs(project)}
    assert found["edited"] == halved.summary()["theta_sha256"]


SWAPPING = """
from pathlib import Path
from fedray.algorithms.fedavg import FedAvg

class Swapping(FedAvg):
    def begin(self, c):
        Path("split.json").write_text("[[8, 9], [0, 1]]")
"""


def test_a_file_that_changes_is_not_taken_for_the_planned_one(
    local_ray: None, project: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    """A partition that the first cell's steps replace: the second cell was planned with the old one. And other data
    when a model of the sweep is loaded, with which personal models would be made."""
    (project / "swapping.py").write_text(SWAPPING)
    (project / "split.json").write_text("[[0, 1], [8, 9]]")
    rng = np.random.default_rng(0)
    x, y = rng.random((10, 4), np.float32), np.arange(10) % 2
    np.savez(project / "d.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    base = sections(clients=(2, 2), partition={"name": "file", "path": "split.json"}, training={"rounds": 2, "lr": 0.1})
    base |= {"data": {"name": "npz", "path": "d.npz"}, "runtime": {"actors": 1}}
    sweep = {"name": "swapped", "base": base, "cases": [{"algorithm": one} for one in ("swapping:Swapping", "fedavg")]}
    out = call("sweep", str(write(project, sweep)), "--max-concurrent", "1").out
    assert "1 failed, 1 finished" in out
    trained, failed = sorted(runs(project), key=lambda run: run.data.tags["fedray.status"], reverse=True)
    said = "partition.path: split.json is not what it was when the sweep began; put it back, and call again"
    assert failed.data.tags["fedray.message"].startswith(said)
    monkeypatch.syspath_prepend(project)
    for what, data in (("npz", -x), ("the file of partition.path", x)):
        np.savez(project / "d.npz", x_train=data, y_train=y, x_test=data, y_test=y)
        said = f"^load: {what} is not what {trained.info.run_id} was trained on; put the old"
        with pytest.raises(UserError, match=said):
            fedray.load(trained.info.run_id)
