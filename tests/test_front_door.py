"""The same run through every door: `fedray.simulate`, `fedray run` inline and with two actors, a trial of a sweep.
`CELLS` are runs with options that change numbers. Every key that identifies a cell is in one of them, or in `UNTRIED`
with a reason; a new key fails here until it is listed."""

import contextlib
import inspect
import io
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

import numpy as np
import pytest
import ray
import yaml

import fedray
from fedray.cli.main import main
from fedray.common.errors import Diverged, UserError
from fedray.components.base import Checked, Component
from fedray.components.identity import EXCLUDED, list_files
from fedray.config import COMPONENTS, RunConfig
from fedray.engine.loop import make_rounds
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.server.simulation import Simulation
from fedray.sweep.points import apply_draw
from fedray.tracking.store import open_store, read_metrics
from tests.conftest import start_ray, work_in
from tests.models.test_own_models import Everything, Tied

BASE: dict[str, Any] = {
    "seed": 3, "data": {"name": "digits"}, "partition": {"name": "dirichlet", "alpha": 1.0},
    "clients": {"total": 8, "per_round": 4}, "model": {"name": "mlp", "hidden": [24]}, "algorithm": {"name": "fedavg"},
    "training": {"rounds": 5, "local_epochs": 2, "batch_size": 30, "lr": 0.3}, "evaluation": {"every": 4, "last": 2},
}  # fmt: skip
SECTIONS: dict[str, dict[str, Any]] = yaml.safe_load("""
own:  # first: `model` undoes `model.hidden`
  model: own:Everything
  partition: {name: file, path: partition.npz}
  training: {optimizer: adamw, lr: 0.01, adamw: {betas: [0.8, 0.99], eps: 1.0e-6, state: client}, weight_decay: 0.1,
    weight_decay_on: weights, last_batch: drop, aggregation: feddisco, feddisco: {a: 0.3, b: 0.2, metric: kl}}
bf16:
  training: {precision: bf16, momentum: 0.8, lr_schedule: cosine, warmup: 1}
  data: {augment: [{crop: 1}]}
  clients: {unseen: 1}
  evaluation: {personal: {epochs: 2, every: 3, split: share, train: true}}
simplex:
  algorithm: {name: fedgela@forms, simplex: simplex.npy}
muon:
  training: {optimizer: muon, lr: 0.03,
    muon: {momentum: 0.8, nesterov: false, steps: 3, lr_factor: 2.0, matrices: body},
    server_step: fedexp, fedexp: {epsilon: 0.01, epsilon_scale: cohort, test: last}, lr_schedule: step,
    lr_step: {every: 2, factor: 0.5}, shuffle: false}
fedtoga:
  algorithm: {name: fedtoga}
  data: {test: {fraction: 0.3, stratify: true}}
  clients: {sampling: bernoulli}
  training: {lr_decay: 0.95, lr_decay_within: 0.9, clip_norm: 1.0, clip_scope: code, server_lr: 0.9, nominal_steps: own,
    relaxed_start: 0.1, relaxed_average: models}
lora:
  model: {hidden: [64, 64]}
  clients: {per_round: 6}
  training: {momentum: 0.5, clip_norm: 2.0}
  model.lora: {rank: 6, alpha: 12.0, targets: ["1"], dropout: 0.1, share: A}
  evaluation: {personal: {every: 5}}
frozen:
  model: {init: init.safetensors, freeze: ["*.bias"], lora: {train: B}}
  partition: {min_size: 110, seed: 1}
  clients: {cohorts: [[0, 1, 2], [3, 4, 6], [5, 6, 7], [0, 3, 6], [1, 4, 7]]}
  data: {validation: {fraction: 0.2, from: pool}}
  training: {local_epochs: null, local_steps: 20}
  evaluation: {train: true, auc: true, probes: [drift]}
""")


def flatten(section: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and their values, of a name its section's; another partition is one value."""
    for key, value in section.items():
        if isinstance(value, Mapping) and "path" not in value:
            yield from flatten(value, f"{path}{key}.")
        else:
            yield (path if key == "name" else f"{path}{key}").rstrip("."), value


CELLS = {name: dict(flatten(sections)) for name, sections in SECTIONS.items()}
TWO_ACTORS = ("bf16", "own")
"""Cells that are also run with two actors, whose start takes seconds, and with `--backend inline`."""
SWEEP = {"name": "doors", "base": BASE, "cases": list(CELLS.values())}
UNTRIED = {
    "data.test.from": "has one value",
    "training.on_divergence": "changes nothing until a client diverges: tests/algorithms/test_cohorts.py",
    "runtime.threads": "changes the last bits of large products alone: tests/engine/test_loop.py",
    "runtime.device": "needs a GPU",
    "runtime.deterministic": "needs a GPU",
}
OWN = """
import random
import numpy as np
import torch
from torch import Tensor, nn
"""
"""Beginning of a module with a model that casts, ties, counts, drops out and draws by NumPy and Python on its own."""
LEARNT = 40.0
"""Test accuracy in percent. Untrained models have about 10 on the ten classes of digits, these have 54 or more."""
INLINE = {"runtime.backend": "inline"}


def list_keys(section: type[Checked], path: str = "") -> Iterator[str]:
    """Yield the dotted keys that identify a cell, without options of a single method, model, partition or data set."""
    for name, field in section.model_fields.items():
        key, kinds = f"{path}{field.alias or name}", (field.annotation, *_list_optional(field.annotation))
        inner = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Checked)), None)
        if EXCLUDED in field.metadata:
            continue
        if inner is None:
            yield key
            continue
        if issubclass(inner, Component) and not inner.name:
            yield f"{key}.name"
        yield from list_keys(inner, f"{key}.")


def _list_optional(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) is UnionType else ()


def list_file_keys() -> Iterator[str]:
    """Yield the keys that name a file, of every partition, model and method; data sets enter by their arrays."""
    for section, (kinds, *_) in COMPONENTS.items():
        for kind in kinds.values() if section != "data" else ():
            yield from (f"{section}.{name}" for name in list_files(kind))


def list_written(section: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from list_written(value, f"{path}{key}.")
        else:
            yield f"{path}{key}"


def test_every_key_that_identifies_a_cell_goes_through_every_door() -> None:
    tried = {*list_written(BASE), *(key for changes in CELLS.values() for key in list_written(changes))}
    keys = {*list_keys(RunConfig), *list_file_keys()}
    assert not keys & tried & UNTRIED.keys(), "is tried, so it needs no reason"
    assert not UNTRIED.keys() - keys, "is no key any more"
    assert keys - tried - UNTRIED.keys() == set(), "add it to one of CELLS, or to UNTRIED with a reason"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[Path]:
    """The working directory: a store, the sweep's file and the files that cells name."""
    path = tmp_path_factory.mktemp("doors")
    with pytest.MonkeyPatch.context() as patch:
        work_in(path, patch, empty_store)
        result = simulate({"training.rounds": 1, "seed": 4})
        result.save("init.safetensors")
        (path / "partition.npz").write_bytes(result.problem.make_artefacts()["partition.npz"])
        np.save("simplex.npy", np.eye(10, BASE["model"]["hidden"][0]))
        (path / "own.py").write_text("\n".join([OWN, *(inspect.getsource(kind) for kind in (Tied, Everything))]))
        (path / "doors.yaml").write_text(yaml.safe_dump(SWEEP))
        yield path
    sys.modules.pop("own", None)  # other tests have one, too


def simulate(changes: Mapping[str, Any]) -> fedray.Result:
    return fedray.simulate(apply_draw(BASE, {**changes, **INLINE}), progress=False)


def make_states(changes: Mapping[str, Any]) -> Iterator[tuple[str, list[dict[str, float]]]]:
    """Yield the hash of the state, and the rows so far, after each round of a run in this process."""
    config = RunConfig.parse(apply_draw(BASE, {**changes, **INLINE}))
    for state in make_rounds(Simulation(Problem.build(config), InlineBackend())):
        yield state.digest(), state.history


def call(name: str, *options: str) -> dict[str, Any]:
    """Return the summary of `fedray run` of a cell, called in this process."""
    number = str(1 + list(CELLS).index(name))
    arguments = ["fedray", "run", "doors.yaml", "--cell", number, "--json", "--no-track", *options]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
        patch.setattr("sys.argv", arguments)
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code
    found: dict[str, Any] = json.loads(out.getvalue().splitlines()[-1])
    return found


def sweep() -> dict[str, dict[str, Any]]:
    """Return what the store holds of each cell of the sweep, under the names of summaries."""
    cells = fedray.run_sweep(SWEEP, max_concurrent=1).cells
    client, _ = open_store()
    found = {}
    for name, run_id in zip(CELLS, cells["run_id"], strict=True):
        run = client.get_run(run_id)
        tags = {tag.removeprefix("fedray."): value for tag, value in run.data.tags.items()}
        found[name] = {**tags, **read_metrics(run), "rounds": BASE["training"]["rounds"]}
    return found


@pytest.fixture(scope="module")
def simulated(folder: Path) -> dict[str, fedray.Result]:
    return {name: simulate(changes) for name, changes in CELLS.items()}


@pytest.fixture(scope="module")
def doors(simulated: dict[str, fedray.Result]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return door -> cell -> its summary."""
    found = {
        "simulate": {name: result.summary() for name, result in simulated.items()},
        "run": {name: call(name) for name in CELLS},
        "run inline": {name: call(name, "--backend", "inline") for name in TWO_ACTORS},
    }
    assert not ray.is_initialized(), "one actor without a GPU is this process"
    start_ray(num_cpus=2)
    try:
        found["run with two actors"] = {name: call(name, "--set", "runtime.actors=2") for name in TWO_ACTORS}
        found["sweep"] = sweep()
    finally:
        ray.shutdown()
    return found


@pytest.mark.parametrize("name", CELLS)
def test_every_door_gives_the_same_numbers(name: str, doors: dict[str, dict[str, dict[str, Any]]]) -> None:
    counted = [key for key in doors["simulate"][name] if not key.startswith("seconds")]
    found = {door: {key: cells[name][key] for key in counted} for door, cells in doors.items() if name in cells}
    for door, numbers in found.items():
        assert numbers == found["sweep"], door
    accuracies = {key: value for key, value in found["sweep"].items() if key.endswith("accuracy")}
    assert min(accuracies.values()) > LEARNT, accuracies


@pytest.mark.parametrize("name", CELLS)
def test_every_option_changes_a_number(name: str, folder: Path) -> None:
    """So a door that ignores one is seen; most do it in round 1. An option without which another one is refused, or the
    run diverges, needs no comparison."""
    states = list(make_states(CELLS[name]))
    for key in CELLS[name]:
        with contextlib.suppress(UserError, Diverged):
            others = make_states({k: value for k, value in CELLS[name].items() if k != key})
            assert any(other != state for other, state in zip(others, states, strict=True)), (
                f"{key} changes no number here: another option of this cell hides it, or no door reads it"
            )
