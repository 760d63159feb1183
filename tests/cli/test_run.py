"""`fedray run` keeps what it makes: checkpoints, the model, one run in MLflow that is shown and resumed."""

import json
import os
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow.pytorch
import pytest
import ray
import torch
import yaml
from mlflow.entities import Run
from safetensors import safe_open
from safetensors.torch import load_file

import fedray
from fedray.common.errors import UserError
from fedray.config import RunConfig
from fedray.datasets.base import load_data
from fedray.engine import loop
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.server.simulation import Simulation
from fedray.sweep.storage import get_cell_locks_file
from fedray.tracking.store import find_sweeps, get_label, open_store, search
from fedray.tracking.tracker import Tracker
from tests.bad_input.case import BASE, RUN
from tests.conftest import Call
from tests.sweep.running import SWEEP, runs

from .test_runs import held_elsewhere


@pytest.fixture
def folder(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("FEDRAY_DATA", raising=False)
    (project / "run.yaml").write_text(yaml.safe_dump(RUN | {"evaluation": {"every": 1}}))
    return project


def counting() -> list[Run]:
    """The runs that no later one supersedes."""
    found = search(*open_store(), "tags.`fedray.kind` = 'cell'")
    return [run for run in found if run.data.tags["fedray.status"] != "superseded"]


def test_a_run_is_kept_shown_again_and_loaded(folder: Path, call: Call) -> None:
    """The second call trains nothing (its checkpoint is the same file) and makes no second run in MLflow."""
    out = call("run", "run.yaml", "--save", "model.safetensors").done
    (run,) = counting()
    assert f"run {run.info.run_id} in MLflow: `fedray ui` shows it" in out  # no server answers
    (checkpoint,) = folder.glob(".fedray/cells/*/checkpoint-2.json")
    made = checkpoint.stat().st_mtime_ns
    _, again, _ = call("run", "run.yaml", "--json")
    assert checkpoint.stat().st_mtime_ns == made
    assert len(list(search(*open_store(), "tags.`fedray.kind` = 'cell'"))) == 1
    (run,) = counting()
    assert (run.info.status, run.data.tags["fedray.status"]) == ("FINISHED", "finished")
    assert json.loads(again)["run_id"] == run.info.run_id
    assert (run.data.params["data.mean"], run.data.params["data.std"]) == ("[0.3054]", "[0.3763]"), "the preset's"
    with torch.inference_mode(), torch.device("meta"):  # a caller's settings
        loaded = fedray.load(run.info.run_id)
    assert loaded.summary()["theta_sha256"] == run.data.tags["fedray.theta_sha256"]
    client, _ = open_store()
    client.set_tag(run.info.run_id, "fedray.theta_sha256", "0" * 64)
    said = rf"^load: the newest checkpoint here, of round 2, is not of {run.info.run_id}: "
    with pytest.raises(UserError, match=said):
        fedray.load(run.info.run_id)
    client.set_tag(run.info.run_id, "fedray.status", "superseded")
    client.delete_tag(run.info.run_id, "fedray.theta_sha256")  # as of a run that was interrupted, before `--force`
    with pytest.raises(UserError, match="its cell was run again"):
        fedray.load(run.info.run_id)
    saved = load_file("model.safetensors")
    flat = torch.cat([saved[name].flatten() for name, _ in loaded.model().model.named_parameters()])
    assert torch.equal(flat, loaded.theta)


@pytest.mark.parametrize("model", ["{name: mlp, hidden: [8]}", "{name: sl_vit, dim: 8, depth: 1, resize: 16}"])
def test_a_model_in_mlflow_is_no_pickle(model: str, folder: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    """MLflow loads it without the class of the model, for any number of images; the run stays as it was. What resizes
    its inputs takes them as the data are."""
    out = call("run", "run.yaml", "--log-model", "--set", f"model={model}").done
    (run,) = counting()
    assert run.info.status == "FINISHED"
    address = re.search(r"model (models:/\S+) in MLflow", out)
    assert address is not None
    client, experiment = open_store()
    (logged,) = client.search_logged_models([experiment])
    assert (logged.source_run_id, logged.status) == (run.info.run_id, "READY")
    (stored,) = folder.glob("mlartifacts/models/*/artifacts/data/*")
    assert stored.name == "model.pt2"
    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    monkeypatch.setattr("mlflow.tracking._tracking_service.utils._tracking_uri", f"sqlite:///{folder / 'mlflow.db'}")
    loaded, trained = mlflow.pytorch.load_model(address[1]), fedray.load(run.info.run_id)
    inputs = torch.from_numpy(load_data(trained.problem.config.data).x_test[:7])
    assert torch.allclose(loaded(inputs), trained.model()(inputs), atol=1e-6)
    client.create_logged_model(experiment, name="model", source_run_id=run.info.run_id)  # and killed
    with torch.autocast("cpu", torch.bfloat16), torch.device("meta"):
        fedray.log_model(run.info.run_id)
    assert {one.status for one in client.search_logged_models([experiment])} == {"READY"}


def test_an_interrupted_run_goes_on_and_its_summary_is_that_of_an_uninterrupted_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch, call: Call, caplog: pytest.LogCaptureFixture
) -> None:
    before = (folder / "mlflow.db").read_bytes()
    call("run", "run.yaml", "--no-track", "--json", "--set", "training.rounds=4")
    assert not (folder / ".fedray").exists()
    assert (folder / "mlflow.db").read_bytes() == before, "--no-track leaves nothing behind"
    step, made = fedray.engine.server.simulation.Simulation.step, []

    def interrupted(simulation: object) -> None:
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(simulation)
        step(simulation)

    with monkeypatch.context() as patch:
        patch.setattr("fedray.engine.server.simulation.Simulation.step", interrupted)
        code, _, err = call("run", "run.yaml", "--set", "training.rounds=4")
    assert code == 130
    assert err.endswith("interrupted; run the same command again to resume\n")
    (run,) = counting()
    assert run.data.tags["fedray.status"] == "interrupted"
    assert "resumed" not in caplog.text
    out = call("run", "run.yaml", "--json", "--set", "training.rounds=4").done
    assert ": resumed, goes on with round 3 of 4\n" in caplog.text
    (run,) = counting()
    client, _ = open_store()
    curve = [metric.value for metric in client.get_metric_history(run.info.run_id, "test_accuracy")]
    assert len(curve) == 4
    assert json.loads(out)["test_accuracy"] == curve[-1]


def test_force_starts_again_and_the_earlier_run_no_longer_counts(folder: Path, call: Call) -> None:
    first = json.loads(call("run", "run.yaml", "--json")[1])
    second = json.loads(call("run", "run.yaml", "--json", "--force")[1])
    assert first["run_id"] != second["run_id"]
    assert first["theta_sha256"] == second["theta_sha256"]
    (run,) = counting()
    assert run.info.run_id == second["run_id"]
    shutil.rmtree(folder / ".fedray" / "cells")  # as `fedray clean` does; an imported cell has none
    third = json.loads(call("run", "run.yaml", "--json", "--force")[1])
    assert [run.info.run_id for run in counting()] == [third["run_id"]]


@pytest.mark.parametrize("options", [[], ["--force"]])
def test_a_cell_that_another_process_runs_is_left_alone(options: list[str], folder: Path, call: Call) -> None:
    """Both would write to one directory and remove each other's files; --force would empty it for the other."""
    call("run", "run.yaml", "--backend", "inline")
    (cell,) = folder.glob(".fedray/cells/*")
    before = {path: path.stat().st_mtime_ns for path in cell.iterdir()}
    with held_elsewhere(get_cell_locks_file(), int(cell.name, 16) % 2**62):
        code, _, err = call("run", "run.yaml", *options)
    said = f"another process is running this cell, {cell.name}; wait for it, or give --no-track"
    assert (code, err) == (2, f"fedray: run: {said}\n")
    assert {path: path.stat().st_mtime_ns for path in cell.iterdir()} == before
    assert call("run", "run.yaml", *options).code == 0


def test_one_cell_of_a_sweep(folder: Path, call: Call) -> None:
    (folder / "sweep.yaml").write_text(yaml.safe_dump({"name": "x", "base": BASE, "grid": {"seed": [3, 4]}}))
    for arguments, seed in (((), "s3"), (("--cell", "2"), "s4")):
        assert f"{seed}: " in call("run", "sweep.yaml", *arguments, "--backend", "inline", "--no-track").done
    assert call("run", "run.yaml", "--cell", "1").refused == "fedray: --cell: run.yaml is one run, not a sweep\n"


def test_a_cell_counts_in_its_sweep_at_once(folder: Path, call: Call) -> None:
    """The sweep's own run is open until its last cell has ended. Another value makes a cell that is none of its."""
    (folder / "sweep.yaml").write_text(yaml.safe_dump({"name": "x", "base": BASE, "grid": {"seed": [3, 4]}}))
    one = ("run", "sweep.yaml", "--backend", "inline", "--cell")
    said = "its status and tables leave this run out\n"
    assert call(*one, "2", "--set", "training.rounds=1").out.endswith(f"x has no such cell: {said}")
    assert call("status").out == "this store holds no sweep\n"
    for number, counts, ended in (("2", {"missing": 1, "finished": 1}, "RUNNING"), ("1", {"finished": 2}, "FINISHED")):
        assert "no such cell" not in call(*one, number).done
        assert json.loads(call("status", "--json").out) == [{"name": "x", "cells": counts, "running": False}]
        assert find_sweeps(*open_store())["x"].info.status == ended
    assert "missing" not in call("tables", "x", "--format", "csv").done
    parent = find_sweeps(*open_store())["x"].info.run_id
    of_sweep = [run for run in counting() if run.data.tags.get("mlflow.parentRunId") == parent]
    assert sorted(get_label(run) for run in of_sweep) == [f"fedsam ρ=0.1 dirichlet(0.5) s{seed}" for seed in (3, 4)]
    assert {run.data.tags["fedray.sweep"] for run in of_sweep} == {"x"}
    everything = call("sweep", "sweep.yaml").done
    assert "x: 2 cells, 2 finished, 0 diverged, 0 to run\n" in everything
    # In MLflow a cell is deleted, trained again and restored; the sweep's run is edited and deleted.
    client, experiment = open_store()
    assert find_sweeps(client, experiment)["x"].data.tags["mlflow.note.content"].strip().startswith("**Best")
    Tracker().close_sweep(parent, {}, "a newer page")
    assert find_sweeps(client, experiment)["x"].data.tags["mlflow.note.content"] == "a newer page"
    known = {run.info.run_id for run in counting()}
    client.delete_run(of_sweep[0].info.run_id)
    assert call(*one, str(int(get_label(of_sweep[0])[-1]) - 2)).code == 0
    client.restore_run(of_sweep[0].info.run_id)
    assert len(counting()) == len(known) + 1
    client.set_tag(parent, "mlflow.note.content", "my note")
    client.delete_run(parent)
    for command in ("status", "tables"):
        assert f"`mlflow runs restore --run-id {parent}`" in call(command, "x").refused
    assert call("sweep", "sweep.yaml").done == everything
    assert {run.info.run_id for run in counting()} == known
    opened = find_sweeps(client, experiment)["x"]
    assert (opened.info.run_id, opened.data.tags["mlflow.note.content"]) == (parent, "my note")
    (folder / "sweep.yaml").write_text(yaml.safe_dump({"name": "x", "base": BASE, "grid": {"seed": [4, 5]}}))
    code, _, err = call(*one, "1")
    assert code == 0, err
    assert err.startswith("x: 1 finished cell of this name is not among these; tables leave them out"), "seed 3"
    # A sweep whose other cell has run elsewhere is closed, too.
    (folder / "other.yaml").write_text(yaml.safe_dump({"name": "y", "base": BASE, "grid": {"seed": [3, 4]}}))
    assert call("run", "other.yaml", "--cell", "2").code == 0
    assert find_sweeps(*open_store())["y"].data.tags["fedray.cells"] == "2 finished"
    failing = {"name": "z", "base": BASE | {"algorithm": "tests.plugins:Raises"}}
    (folder / "failing.yaml").write_text(yaml.safe_dump(failing))
    assert call("run", "failing.yaml", "--cell", "1", "--backend", "inline").code != 0
    assert find_sweeps(*open_store())["z"].data.tags["fedray.cells"] == "1 failed"


def test_a_store_that_stays_away_is_waited_for_once(
    folder: Path, call: Call, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not again by what would close the sweep: a batch job near its limit is killed meanwhile."""
    (folder / "sweep.yaml").write_text(yaml.safe_dump({"name": "x", "base": BASE, "grid": {"seed": [3, 4]}}))
    monkeypatch.setenv("FEDRAY_STORE_PATIENCE", "0.5")
    deliver, gone = Tracker._deliver, threading.Event()

    def reach(tracker: Tracker, write: Callable[[], Any]) -> Any:
        def answer() -> Any:
            if gone.is_set():
                raise ConnectionError("refused")
            return write()

        return deliver(tracker, answer)

    monkeypatch.setattr(Tracker, "_deliver", reach)
    step = Simulation.step
    monkeypatch.setattr(Simulation, "step", lambda simulation: [gone.set(), step(simulation)])
    said = call("run", "sweep.yaml", "--backend", "inline", "--cell", "1").refused
    left = re.search(r"has been unreachable for 0 s \(refused\); not in it yet: (\d+) writes\. Run the same", said)
    assert left is not None
    assert int(left[1]) > 1, "the cell's own writes"
    assert caplog.text.count("MLflow is unreachable (refused)") == 1


def test_a_cell_as_an_archive(folder: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs no store, leaves none, and one command adds all archives to one."""
    (folder / "mlflow.db").unlink()
    (folder / "sweep.yaml").write_text(yaml.safe_dump({"name": "x", "base": BASE, "grid": {"seed": [3, 4]}}))
    one = ("run", "sweep.yaml", "--backend", "inline", "--cell")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "1")
    code, _, err = call(*one, "1")
    said = f"the tasks of a Slurm array cannot share the SQLite file {folder}/mlflow.db"
    assert (code, err.partition(";")[0]) == (2, f"fedray: MLFLOW_TRACKING_URI: {said}")
    for number in ("1", "2"):  # also while a call of the sweep runs, which logs elsewhere
        monkeypatch.setattr("fedray.sweep.storage.is_sweep_running", lambda name, number=number: number == "2")
        out = call(*one, number, "--archive", f"cells/{number}.zip").done
        assert out.endswith(f"archive cells/{number}.zip: `fedray import cells/{number}.zip` adds it to a store\n")
    assert not (folder / "mlflow.db").exists()
    assert "MLFLOW_TRACKING_URI" not in os.environ
    code, out, err = call("import", "cells/1.zip", "cells/2.zip")
    assert (code, out) == (0, "x: 1 cell added, 0 already present\n" * 2), err
    assert json.loads(call("status", "--json").out)[0]["cells"] == {"finished": 2}
    for wrong, says in (
        ("run.yaml", "goes with --cell, and without --no-track"),
        ("sweep.yaml --cell 1 --set seed=9", "--set makes a cell that is not"),
    ):
        code, _, err = call("run", *wrong.split(), "--archive", "a.zip")
        assert (code, err.startswith(f"fedray: --archive: {says}")) == (2, True), err


def test_every_place_shows_the_same_number(folder: Path, call: Call) -> None:
    """The last fifth of 10 rounds is 9 and 10."""
    asked = ("run", "run.yaml", "--set", "training.rounds=10")
    out = call(*asked).done
    (run,) = counting()
    client, _ = open_store()
    curve = {one.step: one.value for one in client.get_metric_history(run.info.run_id, "test_accuracy")}
    number = (curve[9] + curve[10]) / 2
    assert run.data.metrics["summary/last10_test_accuracy"] == number
    assert f": test accuracy {number:.2f} %, mean of rounds 9 to 10\n" in out
    _, out, _ = call(*asked, "--json")
    assert json.loads(out)["last10_test_accuracy"] == number
    assert f"test accuracy {number:.2f} %, mean of rounds 9 to 10>" in repr(fedray.load(run.info.run_id))


def test_the_result_in_python(folder: Path) -> None:
    """`simulate` of a file; the result has a short text, a frame, and a model with the measured accuracy."""
    result = fedray.simulate("run.yaml", checkpoints="ck", progress=False)
    last = result.history[-1]
    shown = f"2 of 2 rounds, test accuracy {last['test_accuracy']:.2f} %, round 2"
    assert repr(result) == f"<Result of fedsam on digits: {shown}>"
    assert list(result.to_frame().index) == [1, 2]
    data = result.problem.data
    inputs, model = torch.from_numpy(data.x_test), result.model()
    by_hand = (inputs.float() / 255 - 0.3054) / 0.3763  # the digits' mean and deviation
    with torch.no_grad():
        right = (model(inputs).argmax(1).numpy() == data.y_test).mean()
        torch.testing.assert_close(model(inputs), model.model(by_hand))
        larger = inputs.repeat_interleave(2, 2).repeat_interleave(2, 3)
        assert (model(larger).argmax(1).numpy() == data.y_test).mean() > right - 0.05, "pictures of another size"
    assert 100 * right == pytest.approx(last["test_accuracy"], abs=1e-4)
    with safe_open(result.save("model.safetensors"), "pt") as file:
        used = json.loads(file.metadata()["preprocessing"])
    assert used == {"mean": [0.3054], "std": [0.3763], "shape": [1, 8, 8]}
    assert list(Path("ck").glob("checkpoint-2.json"))


@pytest.mark.parametrize("algorithm", ["fedavg", "fedper", "local-only", "apfl", "knnper"])
def test_personal_models_score_what_the_run_logged(folder: Path, algorithm: str, call: Call) -> None:
    """Each model on its client's own test samples: the accuracies of the run's table. kNN-Per answers with more."""
    asked = ["--set", f"algorithm={algorithm}", "--set", "evaluation.personal={epochs: [0, 2]}", "--no-track"]
    code, out, err = call("run", "run.yaml", *asked, "--save-personal", "own")
    if algorithm == "knnper":
        assert (code, err) == (2, "fedray: personal_model: knnper answers with more than the model of a client\n")
        return
    assert code == 0, err
    config = yaml.safe_load(Path("run.yaml").read_text())
    result = fedray.simulate(config | {"algorithm": algorithm, "evaluation": {"personal": {"epochs": [0, 2]}}})
    problem, clients = result.problem, result.table("clients").set_index("client")
    assert f"{len(list(Path('own').iterdir()))} personal models in own" in out
    assert problem.split.test is not None
    for client, accuracy in clients["accuracy"].items():
        own, model = problem.split.test[client], result.personal_model(client)
        with torch.no_grad():
            answers = model(torch.from_numpy(problem.data.x_test[own])).argmax(1).numpy()
        assert 100 * (answers == problem.data.y_test[own]).mean() == pytest.approx(accuracy)
        saved = load_file(f"own/client-{client}.safetensors")
        assert all(torch.equal(saved[name], tensor) for name, tensor in model.model.state_dict().items())
    with pytest.raises(UserError, match="personal_model: client: found 99; one of the"):
        result.personal_model(99)


def test_a_run_that_takes_long_starts_a_ray_and_goes_on_there(
    folder: Path, call: Call, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It begins in this process, without Ray; here any run pays that has two CPUs. States and the server go along, and
    each client finds its home there."""
    monkeypatch.setattr(loop, "START_SECONDS", 0.0)
    config = SWEEP["base"] | {"algorithm": "scaffold", "runtime": {"actors": "auto"}}
    config["training"] = config["training"] | {"rounds": 6}
    (folder / "long.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    assert call("run", "long.yaml").code == 0
    assert re.search(r"the run goes on in \d client actors", caplog.text)
    assert not ray.is_initialized(), "its own Ray has ended"
    (made,) = runs(folder)
    expected = loop.run(Problem.build(RunConfig.parse(config)), InlineBackend()).summary()
    for name in ("theta_sha256", "state_sha256"):
        assert made.data.tags[f"fedray.{name}"] == expected[name]
    assert int(made.data.tags["runtime.actors"]) >= 2
