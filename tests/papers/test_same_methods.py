"""Methods that are FedAvg but for their name share its rates; other forms of methods have its numbers by default."""

import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import torch

from fedray.algorithms import ALGORITHMS, algorithm
from fedray.analysis.comparison import compare
from fedray.analysis.data.collect import collect
from fedray.common.errors import UserError
from fedray.components.plugins import list_form_options
from fedray.engine.loop import run
from fedray.engine.process.backend import InlineBackend
from fedray.papers.variants import VARIANTS
from tests import small
from tests.conftest import Call, start_ray
from tests.sweep.running import REPOSITORY

SAME = """
name: same
base:
  data: {name: digits}
  partition: {name: dirichlet, alpha: 0.5}
  clients: {total: 6, per_round: 3}
  model: {name: mlp, hidden: [16]}
  training: {rounds: 8, local_epochs: 1, batch_size: 20}
cases:
  - {algorithm: fedavg}
  - {algorithm: {name: fedsam, rho: 1.0e-9}}
  - {algorithm: {name: mimelite, beta: 0}}
search: {training.lr: {loguniform: [0.05, 0.5]}}
searcher: sobol
samples: 2
tune: {seeds: [100, 101, 102], validation: {fraction: 0.2, from: clients}, blocks: true}
final: {seeds: [0, 1, 2]}
"""
MINE = """
extends: same.yaml
name: mine
cases:
  - {algorithm: "tests.plugins:Idle", search: {algorithm.unused: {uniform: [0, 1]}}}
"""


@pytest.fixture
def folder(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty project, and a Ray of two CPUs."""
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))  # for Ray's processes, which import tests.plugins
    start_ray(num_cpus=2)
    yield tmp_path
    ray.shutdown()


def list_values(name: str, key: str) -> dict[str, list[Any]]:
    """Return method -> the values of a column in each of its cells, in the order of the blocks."""
    cells = collect(name).cells
    return {str(method): list(of[key]) for method, of in cells.groupby("algorithm.name", sort=False)}


@pytest.mark.slow
def test_what_is_fedavg_stands_with_fedavg(folder: Path, call: Call) -> None:
    """MimeLite without momentum has FedAvg's bits; terms of 1e-9 change at most a few images of 360.

    `mine` is FedAvg as a plug-in, with a key that nothing reads: its rates are FedAvg's, whatever else is searched.
    """
    for name, text in (("same", SAME), ("mine", MINE)):
        (folder / f"{name}.yaml").write_text(text)
        assert call("sweep", f"{name}.yaml").code == 0
    rates = [values for k in range(3) for values in list_values(f"same/{k}/tune", "training.lr").values()]
    assert all(rates[3 * k] == rates[3 * k + 1] == rates[3 * k + 2] for k in range(3)), "all were offered the same"
    assert len({rate for of in rates for rate in of}) == 6, "two in each of three blocks"
    sweep = collect("same", "mine")
    found = compare(sweep)
    assert [(one.row, one.n, one.judge(found.lower)) for one in found.differences] == [
        (name, 3, "not told apart") for name in ("fedsam", "mimelite", "idle")
    ]
    assert all(abs(one.mean or 0) < 0.1 for one in found.differences)
    assert [one.gaps for one in found.differences[1:]] == [(0, 0, 0)] * 2
    costs = found.means.droplevel("_column")
    assert costs.loc["fedsam", "gradients"] == 2 * costs.loc["fedavg", "gradients"] > 0
    assert costs.loc["fedsam", "megabytes"] == costs.loc["idle", "megabytes"] == costs.loc["fedavg", "megabytes"] > 0
    tables = call("tables", "same", "mine").out
    assert "- tuned by same/0/tune, same/1/tune, same/2/tune: best last10_validation_accuracy of sobol" in tables
    assert "- tuned by mine/0/tune, mine/1/tune, mine/2/tune: " in tables
    assert call("rm", "mine/1", "--yes").code == 0
    out = call("compare", "same", "mine").out
    assert "- mine/1 is not in this store\n" in out
    assert "| 2 (unpaired: 1) |" in out
    assert "seed is" not in call("compare", "same", "mine/2").err


METHODS = [name.removesuffix("@forms") for name in VARIANTS]


def theta(name: str) -> torch.Tensor:
    training = {"rounds": 2, "local_steps": 3, "batch_size": 16, "lr": 0.02}
    return run(small.problem(name, (8, 4), 12, 0.3, training=training), InlineBackend()).theta


@pytest.mark.parametrize("name", METHODS)
def test_with_its_defaults_a_form_is_the_method(name: str) -> None:
    kind = VARIANTS[f"{name}@forms"]
    assert issubclass(kind, ALGORITHMS[name])
    assert list_form_options(name)
    assert "D-" in (kind.__doc__ or "") or "@forms" in (kind.__doc__ or "")
    assert torch.equal(theta(name), theta(f"{name}@forms"))
    again = pickle.loads(pickle.dumps(algorithm(f"{name}@forms")))  # noqa: S301
    assert again == algorithm(f"{name}@forms")
    assert {key: field.default for key, field in kind.model_fields.items()} == {
        **{key: field.default for key, field in ALGORITHMS[name].model_fields.items()},
        **list_form_options(name),
    }


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(UserError, match=r"^algorithm\.name: unknown name 'fedavg@forms'"):
        algorithm("fedavg@forms")
    with pytest.raises(UserError, match=r"^algorithm\.proximal\.name: unknown name 'fedsam@forms'"):
        algorithm({"name": "fedsol", "proximal": "fedsam@forms"})


def test_they_are_listed_in_a_group_of_their_own(call: Call) -> None:
    out = call("list", "algorithms").out
    methods, _, forms = out.partition("Other forms of methods, with the options that they add:\n")
    assert "@forms" not in methods
    assert [line.split()[0] for line in forms.splitlines()] == sorted(VARIANTS)
    page = call("list", "algorithms", "scaffold@forms").out
    assert "D-32" in page
    assert "Karimireddy" in page
