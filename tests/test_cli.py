"""The command line: every mistake is one line that names the key, exit code 2, and nothing is left behind."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from fedray import cli
from fedray.plan import alone

RUN: dict[str, Any] = {
    "data": {"name": "digits"}, "partition": {"name": "dirichlet", "alpha": 0.5},
    "clients": {"total": 10, "per_round": 3}, "model": {"name": "mlp", "hidden": [8]},
    "algorithm": {"name": "fedsam", "rho": 0.1}, "training": {"rounds": 2, "local_epochs": 1},
    "runtime": {"backend": "inline"}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("MLFLOW_TRACKING_URI", "FEDRAY_DATA", "FEDRAY_STORAGE", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FEDRAY_DATA", str(tmp_path / "data"))
    return tmp_path


def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["fedray", *arguments])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    captured = capsys.readouterr()
    return int(exit_.value.code or 0), captured.out, captured.err


BAD = {
    "unknown section": (["trainig.lr=1"], "configuration: unknown name 'trainig'; did you mean 'training'?"),
    "unknown key": (["training.learning_rate=1"], "training: unknown name 'learning_rate'; "),
    "unknown key, near": (["training.lr_decy=1"], "training: unknown name 'lr_decy'; did you mean 'lr_decay'?"),
    "unknown algorithm": (["algorithm=fedsma"], "algorithm.name: unknown name 'fedsma'; did you mean 'fedsam'?"),
    "unknown option": (["algorithm.roh=1"], "algorithm: unknown name 'roh'; did you mean 'rho'?"),
    "unknown model": (["model=lenet5"], "model.name: unknown name 'lenet5'; did you mean 'lenet'?"),
    "unknown data": (["data=cifar"], "data.name: unknown name 'cifar'; did you mean 'cifar"),
    "unknown partition": (["partition=dirichelt"], "partition.name: unknown name 'dirichelt'; did you mean"),
    "wrong type": (["training.lr=fast"], "training.lr: found 'fast'; input should be a valid number"),
    "negative rho": (["algorithm.rho=-1"], "algorithm.rho: found -1; input should be greater than or equal to 0"),
    "alpha 0": (["partition.alpha=0"], "partition.alpha: found 0; input should be greater than 0"),
    "alpha missing": (["partition={name: dirichlet}"], "partition.alpha: is required"),
    "nan lr": (["training.lr=.nan"], "training.lr: found nan; input should be a finite number"),
    "infinite lr": (["training.lr=.inf"], "training.lr: found inf; input should be a finite number"),
    "more than all": (["clients.per_round=11"], "clients.per_round: found 11; clients.total is only 10"),
    "fraction above 1": (["clients.per_round=1.5"], "clients.per_round: found 1.5; a fraction is at most 1.0"),
    "no clients": (["clients.total=0"], "clients.total: found 0; input should be greater than 0"),
    "half a client": (["clients.total=2.5"], "clients.total: found 2.5; input should be a valid integer"),
    "empty cohort": (["clients.cohorts=[[0], []]"], "clients.cohorts: round 1 lists []"),
    "client twice": (["clients.cohorts=[[0], [1, 1]]"], "clients.cohorts: round 1 lists [1, 1]"),
    "client unknown": (["clients.cohorts=[[0], [10]]"], "clients.cohorts: round 1 lists [10]"),
    "too few cohorts": (["clients.cohorts=[[0]]"], "clients.cohorts: lists 1 rounds, training.rounds is 2"),
    "batch 0": (["training.batch_size=0"], "training.batch_size: found 0; a positive number or `full`"),
    "epochs and steps": (["training.local_steps=3"], "training.local_steps: give either local_steps or local_epochs"),
    "momentum 1": (["training.momentum=1"], "training.momentum: found 1; input should be less than 1"),
    "no rounds": (["training.rounds=0"], "training.rounds: found 0; input should be greater than 0"),
    "aggregation": (["training.aggregation=mean"], "training.aggregation: found 'mean'; input should be 'uniform' or"),
    "backend": (["runtime.backend=dask"], "runtime.backend: found 'dask'; input should be 'inline' or 'ray'"),
    "1.5 GPUs": (["runtime.gpus_per_actor=1.5"], "runtime.gpus_per_actor: found 1.5; a fraction below 1 or whole"),
    "no CPU": (["runtime.cpus_per_actor=0"], "runtime.cpus_per_actor: found 0; an actor without a GPU needs some CPU"),
    "no CUDA": (["runtime.device=cuda"], "runtime.device: no CUDA device is visible"),
    "empty clients": (["clients.total=300", "partition.alpha=0.01"],
                      "partition.min_size: dirichlet left a client with 0 samples in each of 100 draws"),
    "more than samples": (["clients.total=2000"],
                          "partition.min_size: 2000 clients x 1 samples are more than the 1437"),
    "too many classes": (["partition={name: pathological, classes: 11}"],
                         "partition.classes: found 11; the data have 10 classes"),
    "no natural clients": (["partition=natural"], "partition.name: data digits have no natural clients"),
    "no file": (["data={name: npz, path: none.npz}"], "data.path: none.npz does not exist"),
    "no data": (["data=mnist"], "data.name: mnist"),
    "plug-in module": (["algorithm=nowhere:Thing"], "algorithm.name: 'nowhere:Thing' cannot be imported"),
    "plug-in class": (["algorithm=json:Thing"], "algorithm.name: 'json:Thing' cannot be imported"),
    "plug-in kind": (["algorithm=json:JSONDecoder"], "algorithm.name: json:JSONDecoder is not a fedray.algorithms"),
    "plug-in model": (["model=json:JSONDecoder"], "model.name: json:JSONDecoder is not an nn.Module"),
    "init missing": (["model.init=none.pt"], "model.init: none.pt"),
    "--set without =": (["training.lr"], "--set: found 'training.lr'; KEY=VALUE is required"),
    "--set not YAML": (["training.lr=[1"], "--set training.lr: line 1: is not YAML"),
    "section of a number": (["seed.x=1"], "seed.x: seed holds 0, which has no keys"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_in_a_run_is_one_line(
    case: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changes, message = BAD[case]
    (folder / "run.yaml").write_text(yaml.safe_dump(RUN | {"seed": 0}))
    sets = [word for change in changes for word in ("--set", change)]
    code, _, err = call(monkeypatch, capsys, "run", "run.yaml", *sets)
    lines = [line for line in err.splitlines() if line.startswith("fedray: ")]
    assert (code, len(lines)) == (2, 1), err
    assert message in lines[0], lines[0]
    assert "Traceback" not in err
    assert not (folder / "mlflow.db").exists(), "nothing may be left behind"


FILES = {
    "absent.yaml": (None, "absent.yaml: cannot be read: No such file or directory"),
    "list.yaml": ("- 1\n", "list.yaml: holds list, a mapping is required"),
    "broken.yaml": ("a: [1\n", "broken.yaml: line 2: is not YAML"),
    "twice.yaml": ("seed: 1\nseed: 2\n", "twice.yaml: line 2: the key 'seed' stands there twice"),
    "object.yaml": ("a: !!python/object/apply:os.system ['true']\n", "object.yaml: line 1: is not YAML"),
    "empty.yaml": ("", "empty.yaml: holds nothing, a mapping is required"),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("command", ["run", "sweep"])
def test_a_file_that_is_not_one(
    name: str, command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    content, message = FILES[name]
    if content is not None:
        (folder / name).write_text(content)
    code, _, err = call(monkeypatch, capsys, command, name)
    assert code == 2
    assert message in err


SWEEPS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown key": ({"gird": {}}, "sweep.yaml: configuration: unknown name 'gird'; did you mean 'grid'?"),
    "no list": ({"grid": {"seed": 3}}, "sweep.yaml: grid.seed: found 3; input should be a valid list"),
    "bad cell": ({"grid": {"algorithm.rho": [0.1, -0.1]}}, "sweep.yaml: algorithm.rho: found -0.1; input should be"),
    "distribution": ({"search": {"algorithm.rho": {"lognormal": [0, 1]}}},
                     "sweep.yaml: search.algorithm.rho: unknown name 'lognormal'; did you mean 'loguniform'?"),
    "arguments": ({"search": {"algorithm.rho": {"loguniform": [0, 1]}}},
                  "search.algorithm.rho: loguniform does not take [0, 1]; [LOW, HIGH], above 0 is required"),
    "scheduler": ({"scheduler": "random"}, "sweep.yaml: scheduler: found 'random'; input should be 'asha' or 'median'"),
    "stop": ({"stop": {"acuracy": 3}}, "sweep.yaml: stop: unknown name 'acuracy'; did you mean 'test_accuracy'?"),
    "order": ({"grid": {"algorithm.rho": [0.1], "algorithm": ["fedsam"]}},
              "sweep.yaml: grid.algorithm: stands after algorithm.rho, which it would undo; list it before"),
    "inline": ({"base": RUN}, "sweep.yaml: runtime.backend: found inline; a sweep runs on Ray"),
    "second algorithm": ({"grid": {"algorithm": ["fedavg", "moon"], "model.hidden": [[]]}}, "needs a feature layer"),
    "name": ({"name": "a b"}, "sweep.yaml: name: found 'a b'; string should match pattern"),
}


@pytest.mark.parametrize("case", SWEEPS)
def test_a_mistake_in_a_sweep(
    case: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changes, message = SWEEPS[case]
    base = {key: value for key, value in RUN.items() if key != "runtime"}
    (folder / "sweep.yaml").write_text(yaml.safe_dump({"name": "x", "base": base} | changes, sort_keys=False))
    for arguments in (["sweep", "sweep.yaml"], ["sweep", "sweep.yaml", "--dry-run"]):
        code, _, err = call(monkeypatch, capsys, *arguments)
        assert code == 2
        assert message in err
    assert not (folder / "mlflow.db").exists(), "nothing may be left behind"


@pytest.mark.parametrize(("arguments", "message"), [
    (["sweep"], "Missing argument"),
    (["swep"], "No such command 'swep'"),
    (["run", "x.yaml", "--bakend", "ray"], "No such option: --bakend"),
    (["list", "algoritms"], "list: unknown name 'algoritms'; did you mean 'algorithms'?"),
    (["ui"], "there is no store at"),
    (["sweep", "x.yaml", "--max-concurrent", "0"], "Invalid value for '--max-concurrent'"),
])
def test_a_mistake_on_the_command_line(
    arguments: list[str], message: str, folder: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = call(monkeypatch, capsys, *arguments)
    assert code == 2
    assert message in err
    assert len(err.splitlines()) == 1


def test_dry_run_and_what_does_not_fit(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base = {key: value for key, value in RUN.items() if key != "runtime"}
    sweep: dict[str, Any] = {"name": "x", "base": base, "grid": {
        "algorithm": ["fedavg", {"name": "fedsam", "rho": 0.2}], "seed": [0, 1]}}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    code, out, _ = call(monkeypatch, capsys, "sweep", "sweep.yaml", "--dry-run")
    assert code == 0
    assert "x: 4 cells, 0 finished, 0 diverged, 4 to run" in out
    assert re.search(r"[0-9a-f]{16} +to run +fedsam ρ=0.2 dirichlet\(0.5\) s1", out)
    assert "4 trials ask for 1 actor(s) of 1 CPU each: fits" in out
    assert not (folder / "mlflow.db").exists(), "a dry run writes nothing"
    sweep["base"] = base | {"runtime": {"actors": 100_000}}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    code, _, err = call(monkeypatch, capsys, "sweep", "sweep.yaml", "--dry-run")
    assert code == 2
    assert "runtime.actors: 100000 actors of 1 CPU and 0 GPU each are asked for" in err


def test_the_same_sweep_twice_at_once_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base = {key: value for key, value in RUN.items() if key != "runtime"}
    (folder / "sweep.yaml").write_text(yaml.safe_dump({"name": "x/y", "base": base}))
    with alone("x/y"):
        code, _, err = call(monkeypatch, capsys, "sweep", "sweep.yaml")
    assert code == 2
    assert "x/y: another process is running this sweep (it holds " in err
    with alone("x/y"):
        pass  # free again


def test_run_inline_with_json_and_tracking(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "run.yaml").write_text(yaml.safe_dump(RUN))
    code, out, _ = call(monkeypatch, capsys, "run", "run.yaml", "--json")
    result = json.loads(out.splitlines()[-1])
    assert code == 0
    assert result["rounds"] == 2
    from fedray.tracking import best_runs, open_store

    run, = best_runs(*open_store()).values()
    assert run.info.status == "FINISHED"
    assert run.data.tags["fedray.theta_sha256"] == result["theta_sha256"]
    assert run.data.metrics["final_test_accuracy"] == result["test_accuracy"]


def test_a_run_shows_personal_and_generic_accuracy(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Columns of the rounds that have them, and in the summary; without `evaluation.personal` neither."""
    (folder / "run.yaml").write_text(yaml.safe_dump(RUN | {"evaluation": {"every": 1}}))
    asked = ("run", "run.yaml", "--no-track", "--set", "evaluation.personal={epochs: 1}")
    code, out, _ = call(monkeypatch, capsys, *asked, "--json")
    assert code == 0
    found = json.loads(out.splitlines()[-1])
    assert found["generic_accuracy"] == found["test_accuracy"]
    assert {"personal_accuracy", "personal_std", "personal_worst10"} < found.keys()
    _, out, _ = call(monkeypatch, capsys, *asked)
    lines = out.splitlines()
    assert re.search(r"train loss +PA % +GA %$", lines[0].rstrip())
    assert len(lines[1].split()) == 4
    assert lines[2].split()[4:] == [f"{found['personal_accuracy']:.2f}", f"{found['generic_accuracy']:.2f}"]
    _, out, _ = call(monkeypatch, capsys, *asked[:3])
    assert "PA %" not in out


def test_a_diverged_run_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "run.yaml").write_text(yaml.safe_dump(RUN))
    code, _, err = call(monkeypatch, capsys, "run", "run.yaml", "--no-track", "--set", "training.lr=1e20")
    assert code == 3
    assert re.match(r"fedray: diverged in round 1, client \d: ", err)


def test_more_classes_than_outputs_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "small_model.py").write_text(
        "import torch\nclass Three(torch.nn.Sequential):\n"
        "    def __init__(self):\n        super().__init__(torch.nn.Flatten(), torch.nn.Linear(64, 3))\n")
    (folder / "run.yaml").write_text(yaml.safe_dump(RUN | {"model": "small_model:Three"}))
    code, _, err = call(monkeypatch, capsys, "run", "run.yaml")
    assert code == 2
    assert "model.name: small_model:Three gives outputs of shape (3,), the data have 10 classes" in err


def test_natural_clients_and_floats_from_an_npz_file(folder: Path) -> None:
    """`client_train` deals the samples; float32 inputs are used as they are."""
    from fedray.config import RunConfig
    from fedray.problem import Problem

    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 5)).astype(np.float32)
    np.savez("data.npz", x_train=x, y_train=np.arange(12) % 3, x_test=x[:4], y_test=np.arange(4) % 3,
             client_train=np.repeat([7, 9, 20], 4))
    problem = Problem.build(RunConfig.parse(RUN | {
        "data": {"name": "npz", "path": "data.npz"}, "partition": "natural", "clients": {"total": 3, "per_round": 2}}))
    assert [problem.shards[i].tolist() for i in range(3)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert problem.data.x_train.dtype == np.float32
