"""`--dry-run` says what an actor keeps on a GPU, and plans for a cluster that is not here."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from fedray.cells.sheet import Sheet
from fedray.common.location import get_storage
from fedray.config import Runtime
from fedray.sweep import dry_run
from fedray.sweep.plan import Options, make_plan
from fedray.sweep.sweep import Sweep
from fedray.tracking.tracker import Tracker
from tests import small
from tests.analysis import runs
from tests.conftest import Call, each

CLUSTER = ("--nodes", "2", "--cpus-per-node", "16", "--gpus-per-node", "4")


@each(
    ({"gpus_per_actor": 0.25, "actors": 1}, "shards and states", "5 %"),  # 0.2 of a quarter
    ({"gpus_per_actor": 0.25, "actors": 2}, "shards", "5 %"),  # states are in the object store
    ({"gpus_per_actor": 2, "actors": 1}, "shards and states", "20 %"),  # of the one it trains on
    ({}, "", ""),
)
def test_memory_on_a_gpu(
    runtime: dict[str, Any], kept: str, limit: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "local")  # Ray's own word for this machine: no Ray is started for a plan
    monkeypatch.setattr(dry_run, "use_cluster", lambda address: pytest.fail(address))
    monkeypatch.setattr(dry_run, "list_local_nodes", lambda: [{"CPU": 8.0, "GPU": 2.0}])
    plan: Any = SimpleNamespace(sheet=Sheet("x"), is_chosen=bool, requests={Runtime(**runtime): 3}, options=Options())
    dry_run.print_plan(plan)
    said = " ".join(capsys.readouterr().out.split())
    assert "3 cells ask for" in said
    line = f"each actor keeps its clients' {kept} on the GPU, in at most {limit} of a GPU's memory"
    assert (line in said) if kept else ("keeps its clients'" not in said)
    assert ("trains up to 5 clients side by side" in said) == bool(kept)


def write_sweep(**changes: Any) -> None:
    """12 cells on data that are not here, a quarter of a GPU each; 100 rounds."""
    runtime = {"gpus_per_actor": 0.25, "checkpoint_every": 30}
    base = small.sections(model="mlp", data="cifar10", training={"rounds": 100}, runtime=runtime)
    grid = {"algorithm": ["fedavg", "fedsam", "fedadam"], "seed": [0, 1, 2, 3]}
    Path("sweep.yaml").write_text(yaml.safe_dump({"name": "x", "base": base, "grid": grid} | changes))


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder, without data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDRAY_DATA", str(tmp_path / "none"))
    write_sweep()


@pytest.mark.usefixtures("elsewhere")
def test_a_plan_for_a_cluster_that_is_not_here(call: Call) -> None:
    """2 nodes with 4 GPUs hold 32 cells of a quarter; on 1 node with 1 GPU 4 run at a time, in three waves. A cell of
    100 rounds of 36 s takes an hour, of FedSAM; those of FedAvg and FedAdam, with one gradient a step instead of two,
    take half of it. So three waves take 0.5 + 1 + 0.5 = 2 h, and the job may take a quarter more, 3 h; 4 cells of each
    method reserve 8 core-hours, a quarter of that in GPU-hours, of 32 and 2 that the node has; 2 such nodes have room
    for 8, and FedAdam's follow FedAvg's, 4 for all: 1 h. Of 30 rounds since a checkpoint a preemption costs 0.3 h. With
    399 times the seconds the waves take 798 h."""
    out = call("sweep", "sweep.yaml", "--dry-run", *CLUSTER).done
    assert "cluster: 2 nodes, 32 CPU, 8 GPU\n" in out
    assert "12 cells ask for as many actors as fit of 1 CPU + 0.25 GPU each: 32 at a time, 1 wave\n" in out
    assert "12 cells: hours not measured; measure a round where they will run (`fedray run sweep.yaml --cell 5 " in out
    changed = call("sweep", "sweep.yaml", "--dry-run", *CLUSTER, "--set", "training.lr=0.2").done
    assert "(`fedray run sweep.yaml --set training.lr=0.2 --cell 5 --set training.rounds=3 --no-track`" in changed
    assert "at most 30 rounds (runtime.checkpoint_every)" in out
    asked = "--nodes=2 --cpus-per-task=16 --gpus-per-node=4"
    assert "no --time below, since the hours are not known: --seconds-per-round gives them\n" in out
    assert "after 24 hours the job is requeued and goes on" in out
    export = "  export FEDRAY_DATA=/shared/data FEDRAY_STORAGE=/shared/me/fedray MLFLOW_TRACKING_URI=http://HOST:5000\n"
    commands = f"{export}  fedray list clusters slurm.sh > slurm.sh\n  sbatch {asked} slurm.sh sweep.yaml\n"
    assert out.endswith(f"under Slurm, with data, a folder and a store that all nodes reach:\n{commands}")
    changes = ("--set", "training.rounds=4", "--set", "runtime.gpus_per_actor=0", "--max-concurrent", "3")
    out = call("sweep", "sweep.yaml", "--dry-run", *CLUSTER, *changes).done
    assert "no cell uses a GPU, and there are 8: runtime.gpus_per_actor is 0; 1 in the file gives a cell a GPU" in out
    assert "32 CPU, 8 GPU\n12 cells ask for as many actors as fit of 1 CPU each: 3 at a time, 4 waves\n" in out
    assert out.endswith(f"  sbatch --nodes=2 --cpus-per-task=16 slurm.sh sweep.yaml {' '.join(changes)}\n")
    small_one = ("--nodes", "1", "--cpus-per-node", "16", "--gpus-per-node", "1", "--seconds-per-round", "36")
    out = call("sweep", "sweep.yaml", "--dry-run", *small_one).done
    assert "4 at a time, 3 waves\n" in out
    reserved = "8 core-hours and 2 GPU-hours reserved, busy or not, at 36 s per round of"
    assert f"12 cells: 2 h of wall clock, {reserved}" in out
    assert "the slowest method, of the others by their gradients; " in out
    assert "a cluster that bills whole nodes for that time counts 32 core-hours and 2 GPU-hours\n" in out
    assert "sbatch --nodes=1 --cpus-per-task=16 --gpus-per-node=1 --time=3:00:00 slurm.sh sweep.yaml\n" in out
    assert "no --time" not in out
    assert "like this one: 2 h with 1 node, 60 min with 2 nodes; more save no time\n" in out
    assert "36 s have to be a round of fedsam, the slowest method (cell 5), with 4 processes on each GPU\n" in out
    assert "at most 30 rounds or 18 min (" in out
    out = call("sweep", "sweep.yaml", "--dry-run", *small_one[:-1], str(399 * 36)).out
    assert "12 cells: 798 h of wall clock, 3,190 core-hours and 798 GPU-hours reserved" in out
    assert "--time=" not in out.rpartition("sbatch")[2], "it is requeued after 24 hours"
    assert "no --time below, since 998 h, with a quarter to spare, do not fit in slurm.sh's 24; where your" in out
    assert [path.name for path in Path().iterdir()] == ["sweep.yaml"]


@pytest.mark.usefixtures("elsewhere")
def test_statuses_are_those_that_this_machine_knows(store: Tracker, call: Call) -> None:
    """Of five cells that MLflow takes for running, the first three have a folder here and no process: of these one has
    no checkpoint, one that of round 1, one that of its last. A call trains the first with a checkpoint from there."""
    write_sweep(base=small.sections(training={"rounds": 2}, runtime={}), grid={"seed": list(range(6))})
    asked = ("sweep", "sweep.yaml", "--dry-run")
    cells = make_plan(Sweep.parse(yaml.safe_load(Path("sweep.yaml").read_text()))).sheet.to_json()["cells"]
    runs.write(store, cells, [("running", [])] * 5, name="x")
    for cell, checkpoint in zip(cells[:3], ("", "checkpoint-1.json", "checkpoint-2.json"), strict=True):
        folder = get_storage() / "cells" / cell["hash"]
        folder.mkdir(parents=True)
        (folder / (checkpoint or "traceback.txt")).touch()
    expected = ["interrupted", "interrupted", "finished but not yet in MLflow", "running", "running", "to run"]
    out = call(*asked).done
    listed = (line.split(maxsplit=2)[2] for line in out.splitlines()[2:8])
    assert [line.partition("  ")[0] for line in listed] == expected
    first = "1 finished (1 of them not yet in MLflow), 0 diverged, 5 to run (1 from a checkpoint), 1 to log"
    assert out.startswith(f"x: 6 cells, {first}\n")
    assert [one.get("status", "to run") for one in json.loads(call(*asked, "--json").done)["cells"]] == expected
    assert ", 6 to run\n" in call(*asked, "--force").done


@pytest.mark.usefixtures("elsewhere")
def test_a_plan_says_which_cells_were_not_measured_and_that_methods_have_too_few_seeds(call: Call) -> None:
    """Cells 1 to 4 are FedAvg's, 5 to 8 FedSAM's, with batches of 10 and 20 in turn: cell 5 is the slowest."""
    said = "cells have other data, another model, batch or precision than cell 5: their gradients are taken to last"
    for key, others in (("training.batch_size", 4), ("training.lr", 0)):
        write_sweep(grid={key: [10, 20], "algorithm": ["fedavg", "fedsam"], "seed": [0, 1]})
        out = call("sweep", "sweep.yaml", "--dry-run", *CLUSTER, "--seconds-per-round", "2").done
        assert f"{others} of 8 {said}" in out if others else said not in out
    for size, of in ((20, "20 samples"), ("full", "all of a client's samples")):  # 2 gradients of each of 3 clients
        training = {"rounds": 2, "local_steps": 5, "batch_size": size}
        write_sweep(base=small.sections(model="mlp", data="cifar10", training=training))
        out = call("sweep", "sweep.yaml", "--dry-run", *CLUSTER).done
        assert f"of fedsam, the slowest method, with 30 gradients of {of} in a round)" in out
    # In the words of `compare`, before the hours are spent; not for one method, three seeds or a small version.
    few_seeds = "x: 2 seeds a setting are too few for an interval or a test"
    said, both = f"{few_seeds}; 3 give the first, six or more serve every test\n", ["fedavg", "fedsam"]
    for methods, seeds, few in ((both, [0, 1], True), (["fedavg"], [0, 1], False), (both, [0, 1, 2], False)):
        write_sweep(grid={"algorithm": methods, "seed": seeds}, smoke={"base": {"training": {"rounds": 1}}})
        assert (said in call("sweep", "sweep.yaml", "--dry-run", *CLUSTER).done) == few
        assert "too few" not in call("sweep", "sweep.yaml", "--dry-run", "--smoke", *CLUSTER).done
    write_sweep(grid={"algorithm": both, "seed": [0, 1]}, base=small.sections(runtime={}))
    assert said in call("sweep", "sweep.yaml", "--dry-run").done


@pytest.mark.usefixtures("elsewhere")
def test_a_plan_of_some_cells_and_what_leaves_gpus_idle(call: Call) -> None:
    """FedSAM's four of the twelve, and FedAvg's first: five at a time, a wave of 100 rounds of 36 s, which more nodes
    do not shorten. The job runs the same cells."""
    only = ("--only", "fedsam*", "--only", "1")
    out = call("sweep", "sweep.yaml", "--dry-run", *CLUSTER, "--seconds-per-round", "36", *only).done
    assert "x: 5 cells\n" in out
    assert "5 cells: 60 min of wall clock" in out
    assert "on nodes like these: 60 min with 1 node, 60 min with 2 nodes; more save no time\n" in out
    assert "of fedsam, the slowest method (cell 5), with 4 processes on each GPU\n" in out
    assert out.endswith(" slurm.sh sweep.yaml --only 'fedsam*' --only 1\n")
    # Each cell asks for a CPU and a quarter of a GPU: 3 CPUs hold 3 of the 4 that would fit on the GPU. Of eight GPUs
    # four cells at a time, with an actor for each of three clients, use 12 quarters.
    out = call("sweep", "sweep.yaml", "--dry-run", *CLUSTER, "--max-concurrent", "4").done
    assert "the cells that run at a time can use at most 3 of the 8 GPUs; 2 per node would do\n" in out
    few = ("--nodes", "1", "--cpus-per-node", "3", "--gpus-per-node", "1", "--seconds-per-round", "36")
    out = call("sweep", "sweep.yaml", "--dry-run", *few).done
    assert "3 at a time, 4 waves; a node's 3 CPUs are the limit, its GPUs have room for 4\n" in out
    assert "with 3 processes on each GPU\n" in out


@pytest.mark.usefixtures("elsewhere")
def test_both_stages_are_planned_and_what_does_not_fit_is_named(call: Call) -> None:
    """3 methods x 2 draws x 1 seed, then 3 methods x 2 seeds; without a GPU none of them fits. With 16 CPUs a node, as
    slurm.sh asks for, a method of 20 CPUs does not fit, and a sweep does not start without it."""
    stages = {"search": {"training.lr": {"uniform": [0.1, 1]}}, "samples": 2, "tune": {"seeds": [0]}}
    write_sweep(grid={"algorithm": ["fedavg", "fedsam", "fedadam"]}, **stages, final={"seeds": [5, 6]})
    code, out, err = call("sweep", "sweep.yaml", "--dry-run", "--nodes", "3", "--cpus-per-node", "8")
    refused = (2, "fedray: sweep.yaml: not all cells fit on these nodes, so that the sweep would not start\n")
    assert (code, err) == refused
    assert all(text in out for text in ("x/tune: 6 cells\n", "x: 6 cells\n"))
    unfit = "0.25 GPU each: they do not fit; there is no GPU (--nodes, --gpus-per-node); or lower runtime."
    assert out.count(unfit) == 2
    assert not any(text in out for text in ("sbatch", "wall clock"))
    out = call("sweep", "sweep.yaml", "--dry-run", *CLUSTER).done
    assert out.count("they will run (fedsam, the slowest method") == 1, "`run --cell` has no cells of the final stage"
    assert out.count("they will run (`fedray run sweep.yaml --cell 3 ") == 1
    assert "`fedray run" not in call("sweep", "sweep.yaml", "--dry-run", *CLUSTER, "--set", "samples=1").done
    cells = [{"algorithm": "fedavg"}, {"algorithm": "fedsam", "runtime.cpus_per_actor": 20}]
    write_sweep(cases={"a": cells}, grid={"seed": [0, 1]})
    code, out, err = call("sweep", "sweep.yaml", "--dry-run", "--nodes", "3", "--gpus-per-node", "1")
    assert (code, err) == refused
    assert "cluster: 3 nodes, 48 CPU, 3 GPU\n" in out
    assert "2 cells ask for as many actors as fit of 20 CPU + 0.25 GPU each: they do not fit; lower" in out
    assert "sbatch" not in out


@each(
    ([], 0.0),
    ([(0.5, 3.0), (0.5, 1.0), (0.5, 4.0)], 5.0),  # the third starts at 1
    ([(1 / 3, 2.0)] * 7, 6.0),  # three waves
    ([(1.0, 2.0), (0.25, 8.0), (1.0, 1.0)], 11.0),  # the third waits for the second
)
def test_wall_clock_by_hand(cells: list[tuple[float, float]], seconds: float) -> None:
    assert dry_run.find_makespan(cells) == pytest.approx(seconds)
