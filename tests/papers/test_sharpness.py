"""Sharpness of a real run's checkpoint, FedSOL's toy example, and Hessians that are known or differences; other forms
of methods have the numbers of the method by default."""

import csv
import json
import math
import pickle
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fedray
from analysis import toy
from fedray.algorithms import ALGORITHMS, algorithm
from fedray.common.errors import UserError
from fedray.common.location import get_storage
from fedray.components.plugins import list_form_options
from fedray.config import RunConfig
from fedray.datasets.dataset import Dataset, Samples
from fedray.engine.loop import run
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.result import Result
from fedray.models.network import Network
from fedray.papers import sharpness
from fedray.papers.sharpness import (
    compute_surface,
    draw_contours,
    draw_filter_normalised,
    find_runs,
    find_top_eigenvalues,
    main,
)
from fedray.papers.variants import VARIANTS
from fedray.sweep.single import run_problem
from fedray.tracking.tracker import Tracker
from tests import small
from tests.analysis.runs import sheet, write_run
from tests.conftest import Call

MODEL, TRAINING = {"name": "mlp", "hidden": []}, {"rounds": 2, "local_epochs": 1}
RUN = small.sections(clients=(5, 2), model=MODEL, training=TRAINING, evaluation={"every": 1})


@pytest.fixture(autouse=True)
def _storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDRAY_STORAGE", str(tmp_path / "storage"))
    monkeypatch.chdir(tmp_path)


def logged(store: Tracker, resolved: Mapping[str, Any], cell: str = "abc") -> str:
    return write_run(store, {"hash": cell, "label": "a run", "config": resolved}, again=False)


def trained(config: RunConfig) -> Result:
    return run_problem(Problem.build(config), "abc", checkpoints=nullcontext((get_storage() / "cells" / "abc", None)))


def test_eigenvalues_and_plane_of_a_checkpoint(store: Tracker, capsys: pytest.CaptureFixture[str]) -> None:
    """Files: eigenvalues in descending order, their ratio, and a grid whose middle is the loss at the model itself.
    Along unit eigenvectors second differences of the loss are λ1 and λ2 times the squared step, up to fourth order (for
    a linear model; a ReLU's kinks, which have no Hessian, would add to them)."""
    config = RunConfig.parse(RUN)
    trained(config)
    run = logged(store, config.resolve())
    main(run=[run], plot="eigen", samples=300, points=3, reach=0.1)
    found = json.loads(Path(f"sharpness/{run}.json").read_text())
    values = found["eigenvalues"]
    assert len(values) == 5
    assert values == sorted(values, reverse=True)
    assert found["ratio"] == values[0] / values[4]
    assert (found["label"], found["round"], found["samples"]) == ("a run", 2, 300)
    rows = list(csv.DictReader(Path(f"sharpness/{run}-eigen.csv").read_text().splitlines()))
    grid = np.array([float(row["loss"]) for row in rows]).reshape(3, 3)
    steps = ("-0.1", "0", "0.1")
    assert [(row["first"], row["second"]) for row in rows] == [(first, second) for first in steps for second in steps]
    assert grid[1, 1] == pytest.approx(found["loss"], abs=1e-6)
    curvature = (grid[2, 1] - 2 * grid[1, 1] + grid[0, 1]) / 0.01, (grid[1, 2] - 2 * grid[1, 1] + grid[1, 0]) / 0.01
    assert curvature == pytest.approx(values[:2], rel=0.02)
    names = {path.name.removeprefix(run) for path in Path("sharpness").iterdir()}
    assert names == {".json", "-eigen.csv", *(f"eigen{view}.{kind}" for view in ("", "-3d") for kind in ("png", "pdf"))}
    assert f"training samples\n  λ1 {values[0]:.4g}, λ1/λ5 {found['ratio']:.4g}" in capsys.readouterr().out
    again = Path(f"sharpness/{run}.json").read_bytes()
    main(run=[run], plot="random", samples=300, points=3, reach=0.1)
    assert Path(f"sharpness/{run}.json").read_bytes() == again, "the same samples and the same start each time"


def test_the_model_that_was_tested_is_examined(store: Tracker) -> None:
    """FedExP tests the mean of its last two iterates."""
    config = RunConfig.parse(RUN | {"algorithm": "fedexp"})
    result, found = trained(config), sharpness.TrainedRun(logged(store, config.resolve()), 10)
    assert found.theta.equal(result.theta)
    assert not found.theta.equal(result.state.theta)


def test_refusals(store: Tracker) -> None:
    config, alone = RunConfig.parse(RUN), RunConfig.parse(RUN | {"algorithm": "local-only"})
    trained(alone)
    personal = logged(store, alone.resolve())
    none = logged(store, config.resolve(), "none")
    foreign = logged(store, config.resolve() | {"model": {"name": "os:path"}})
    sweep = store.open_sweep(sheet("sweep", []))
    for one, message in (
        (none, "there is no checkpoint of it in"),
        (personal, "has no global model"),
        (foreign, "a plug-in; fedray imports no class that a store names"),
        (sweep, "is not the run of a cell; one of a sweep"),
        ("0" * 32, "is not the id of a run in this store"),
    ):
        with pytest.raises(UserError, match=message):
            main(run=[one])
    with pytest.raises(UserError, match="unknown name 'egien'; did you mean 'eigen'"):
        main(run=[none], plot="egien")
    for reach in (0.0, math.nan):
        with pytest.raises(UserError, match=r"--reach: found .*; expected a number above 0"):
            main(run=[none], plot="eigen", reach=reach)


def test_runs_are_found_by_sweep_and_label(store: Tracker, capsys: pytest.CaptureFixture[str]) -> None:
    """In the order of `--cell`, each once; without it all cells of the sweep, which have to be finished."""
    config = RunConfig.parse(RUN)
    trained(config)
    cells = [{"hash": name, "label": f"{name} seed=0", "config": config.resolve()} for name in ("abc", "none")]
    done = write_run(store, cells[0], parent=store.open_sweep(sheet("sweep", cells)), again=False)
    assert find_runs("sweep", ["abc*", "1"], []) == find_runs(None, [], [done, done]) == [done]
    main("sweep", cell=["abc*"], samples=50)
    assert f"sharpness/{done}.json" in capsys.readouterr().out
    for given, message in (
        (("sweep", [], []), "^sharpness: none seed=0 of sweep has no finished run; --cell names others$"),
        (("sweep", [], [done]), "^--run: a sweep is given too; --cell names its cells$"),
        ((None, [], []), "^sharpness: a sweep is required"),
    ):
        with pytest.raises(UserError, match=message):
            find_runs(*given)


def test_a_checkpoint_that_is_not_whole_is_one_line(store: Tracker) -> None:
    config = RunConfig.parse(RUN)
    trained(config)
    for manifest in (get_storage() / "cells" / "abc").glob("checkpoint-*.json"):
        manifest.write_bytes(b"{}")
    run = logged(store, config.resolve())
    for key, examine in (("sharpness", lambda: main(run=[run])), ("load", lambda: fedray.load(run))):
        with pytest.raises(UserError, match=rf"^{key}: none of its checkpoints in .* is whole \(rounds 2\)"):
            examine()


def test_fedsols_toy_example_ends_where_it_should(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Appendix H's equilibria: FedProx turns from the direction of the local minimum, FedSOL keeps it (D-123). The
    server is at 0, the local minimum at 1, curvatures h = (1, 0.1). FedAvg: 1 - w1 = 0.99^4000 = 0, 1 - w2 = 0.999^4000
    = 0.01828. FedProx ends where h (w - 1) + μ w = 0, so at h / (h + μ) = (0.9091, 0.5) for μ = 0.1. FedSOL's gradient
    is 0 where w + ρ u = 1 with u from 0 to w: on the line through both, ρ short of the minimum: 1 - 0.3536 for ρ = 0.5.
    The flat direction contracts by 0.999 per step (0.998 with μ), so 4000 steps leave at most 0.02 of the way."""
    avg, prox, sol = (points[-1] for points in toy.paths(0.1, 0.5).values())
    assert all(np.array_equal(points[0], [0, 0]) for points in toy.paths(0.1, 0.5).values())
    assert avg == pytest.approx([1, 1 - 0.999**4000], abs=1e-12)
    assert prox == pytest.approx([10 / 11, 1 / 2], abs=1e-3)
    assert sol == pytest.approx([1 - 0.5 / 2**0.5] * 2, abs=0.02)
    assert [toy.measure_turn(np.array(end)) for end in ((1, 1), (0, 1), (2, 0))] == pytest.approx([0, 45, 45])
    assert toy.measure_turn(prox) == pytest.approx(45 - np.degrees(np.arctan(0.55)), abs=0.1)  # (10/11, 1/2)
    assert toy.measure_turn(sol) < 1
    same = list(toy.paths(0, 0).values())
    assert np.array_equal(same[0], same[1])
    assert np.allclose(same[0], same[2], atol=1e-12)
    toy.main(out=tmp_path)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".csv", ".pdf", ".png", ".txt"]
    assert len((tmp_path / "fedsol-figure12.csv").read_text().splitlines()) == 1 + 3 * 4001
    printed = capsys.readouterr().out
    assert all(text in printed for text in ("are our choice", "16.2 degrees from the direction of the local minimum"))


def landscape(module: nn.Module, x: np.ndarray, y: np.ndarray, network: Network | None = None) -> sharpness.Landscape:
    network, data = network or Network(module), Dataset("made", x, y, x, y, int(y.max()) + 1)
    return sharpness.Landscape(network, network.buffers.clone(), Samples(x, y, data, "cpu"), np.arange(len(y)))


def softmax_regression(samples: int = 700) -> tuple[sharpness.Landscape, Tensor, np.ndarray]:
    """A linear model of 4 inputs and 3 classes at a random θ, and its Hessian (15, 15), by hand. With p = softmax(W x +
    b) and z = (x, 1) the Hessian of the mean cross-entropy is the mean over samples of (diag p - p p') ⊗ z z', for any
    labels. θ is W row by row, then b. 700 samples are two chunks."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(samples, 4)).astype(np.float32), rng.integers(3, size=samples)
    y[:3] = 0, 1, 2
    theta = torch.from_numpy(rng.normal(size=15).astype(np.float32))
    weight, bias = theta[:12].view(3, 4).double().numpy(), theta[12:].double().numpy()
    logits = x @ weight.T + bias
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    z = np.concatenate([x, np.ones((samples, 1))], 1)
    inner = np.einsum("nc,cd->ncd", p, np.eye(3)) - np.einsum("nc,nd->ncd", p, p)
    whole = np.einsum("ncd,ni,nj->cidj", inner, z, z).reshape(15, 15) / samples  # blocks of (4 weights, bias)
    order = [c * 5 + i for c in range(3) for i in range(4)] + [c * 5 + 4 for c in range(3)]
    return landscape(nn.Linear(4, 3), x, y), theta, whole[np.ix_(order, order)]


def test_products_and_eigenvalues_of_softmax_regression() -> None:
    found, theta, hessian = softmax_regression()
    columns = torch.stack([found.multiply_hessian(theta, v) for v in torch.eye(15)]).numpy()
    np.testing.assert_allclose(columns, hessian, atol=2e-7)
    start = np.random.default_rng(1).normal(size=15)
    values, vectors = find_top_eigenvalues(lambda v: found.multiply_hessian(theta, v), start, 5)
    np.testing.assert_allclose(values, np.linalg.eigvalsh(hessian)[::-1][:5], rtol=1e-4)
    np.testing.assert_allclose(hessian @ vectors[0], values[0] * vectors[0], atol=1e-4)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1)
    # diag(-100, 7, 6, 5, 4, 3, 2, 0, ...): -100 is the largest in size, and is none of the five.
    diagonal = torch.tensor([-100.0, 7, 6, 5, 4, 3, 2, *[0] * 30])
    values, _ = find_top_eigenvalues(lambda v: diagonal * v, np.ones(37), 5)
    assert values == pytest.approx([7, 6, 5, 4, 3], rel=1e-4)


def test_a_flat_loss_is_one_line() -> None:
    with small.refused("sharpness: the Hessian's eigenvalues were not found; it is 0, or not finite"):
        find_top_eigenvalues(lambda v: 0 * v, np.ones(37), 5)
    with small.refused("--reach: the losses along the directions are all equal"):
        draw_contours(["a"], "eigen", np.linspace(-1, 1, 3), [np.ones((3, 3))])


def pick_model(name: str, classes: int = 3) -> tuple[dict[str, Any], np.ndarray, Dataset]:
    """A model of the zoo and inputs that suit it."""
    rng = np.random.default_rng(0)
    model, shape = {
        "mlp": ({"name": "mlp", "hidden": [6]}, (1, 4, 4)),
        "lenet": ({"name": "lenet"}, (3, 32, 32)),
        "resnet18": ({"name": "resnet18", "norm": "batch"}, (3, 32, 32)),
        "sl_vit": ({"name": "sl_vit", "depth": 2, "dim": 24}, (3, 32, 32)),
        "char_lstm": ({"name": "char_lstm", "hidden": 16}, (8,)),
    }[name]
    tokens = name == "char_lstm"
    x = rng.integers(20, size=(4, *shape)).astype(np.uint8) if tokens else rng.normal(size=(4, *shape)).astype("f4")
    return model, x, Dataset("made", x, np.arange(4) % classes, x, np.arange(4) % classes, classes)


@pytest.mark.parametrize(
    "name", ["mlp", "lenet", "sl_vit", "char_lstm", pytest.param("resnet18", marks=pytest.mark.slow)]
)
def test_products_are_differences_of_gradients(name: str) -> None:
    """H v = (∇L(θ + h v) - ∇L(θ - h v)) / 2h + O(h²), in float64. The zoo: pooling, norms, attention, recurrence."""
    model, x, data = pick_model(name)
    config = RunConfig.parse({"data": "digits", "partition": "iid", "model": model, "algorithm": "fedavg"})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = config.model.build(data.input_shape, 80 if data.tokens else data.num_classes)
    network = Network(module)
    found, theta = landscape(module, x, data.y_train, network), network.theta.clone()
    v = torch.from_numpy(np.random.default_rng(1).normal(size=len(theta)).astype(np.float32))
    v /= torch.linalg.vector_norm(v)
    product = found.multiply_hessian(theta, v)

    double, inputs = module.double(), found.samples.make_batch(np.arange(4))[0]

    def gradient(at: Tensor) -> Tensor:
        with torch.no_grad():
            for parameter, value in zip(double.parameters(), network.layout.views(at).values(), strict=True):
                parameter.copy_(value)
        given = inputs if inputs.dtype == torch.int64 else inputs.double()
        loss = cross_entropy(double(given), torch.from_numpy(data.y_train))
        found = torch.autograd.grad(loss, list(double.parameters()), materialize_grads=True)
        return torch.cat([part.reshape(-1) for part in found])

    h = 1e-5
    difference = (gradient(theta.double() + h * v.double()) - gradient(theta.double() - h * v.double())) / (2 * h)
    scale = float(difference.norm())
    assert scale > 0
    assert float((product - difference).norm()) < 2e-3 * scale


def test_frozen_parameters_are_no_directions() -> None:
    """The bias of the first layer, 5 of 43 parameters, has no row; the others' Hessian is symmetric."""
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    module[0].bias.requires_grad_(False)
    found = landscape(module, np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32), np.arange(20) % 3)
    theta = found.network.theta.clone()
    hessian = torch.stack([found.multiply_hessian(theta, v) for v in torch.eye(len(theta))])
    assert hessian.shape == (38, 38)
    torch.testing.assert_close(hessian, hessian.T, rtol=1e-4, atol=1e-6)
    assert hessian.any()


def test_filters_are_as_long_as_the_models_own() -> None:
    """Two filters, lengths 5 and 2: so are the direction's. The bias and the norm layer's scale have no direction."""
    module = nn.Sequential(nn.Conv2d(1, 2, 2), nn.GroupNorm(1, 2), nn.Flatten(), nn.Linear(2, 2))
    with torch.no_grad():
        module[0].weight[0] = torch.tensor([[[3.0, 0], [4, 0]]])
        module[0].weight[1] = torch.tensor([[[0.0, 2], [0, 0]]])
    network = Network(module)
    drawn = draw_filter_normalised(network.theta, network.layout, np.random.default_rng(0))
    first, second = map(network.layout.views, drawn)
    for direction in (first, second):
        assert direction["0.weight"].flatten(1).norm(dim=1).tolist() == pytest.approx([5, 2])
        assert not direction["0.bias"].any()
        assert not direction["1.weight"].any()
    assert (first["0.weight"] * second["0.weight"]).flatten(1).sum(1).tolist() == pytest.approx([0, 0], abs=1e-5)


def test_surface() -> None:
    """Entry (i, j) is the loss at θ + steps[i] d1 + steps[j] d2; the first index belongs to the first direction."""
    found, theta, _ = softmax_regression(30)
    first, second = torch.eye(15)[0], 2 * torch.eye(15)[7]
    losses = compute_surface(found, theta, (first, second), np.array([-1.0, 0, 0.5]))
    assert (losses.shape, losses[1, 1]) == ((3, 3), found.compute_loss(theta))
    assert losses[2, 0] == found.compute_loss(theta + 0.5 * first - second)
    assert losses[0, 2] != losses[2, 0]


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
    expected = {key: field.default for key, field in ALGORITHMS[name].model_fields.items()} | list_form_options(name)
    assert {key: field.default for key, field in kind.model_fields.items()} == expected


def test_an_unknown_form_is_refused_and_forms_are_listed_in_a_group_of_their_own(call: Call) -> None:
    with pytest.raises(UserError, match=r"^algorithm\.name: unknown name 'fedavg@forms'"):
        algorithm("fedavg@forms")
    with pytest.raises(UserError, match=r"^algorithm\.proximal\.name: unknown name 'fedsam@forms'"):
        algorithm({"name": "fedsol", "proximal": "fedsam@forms"})
    out = call("list", "algorithms").out
    methods, _, forms = out.partition("Other forms of methods, with the options that they add:\n")
    assert "@forms" not in methods
    assert [line.split()[0] for line in forms.splitlines()] == sorted(VARIANTS)
    page = call("list", "algorithms", "scaffold@forms").out
    assert all(text in page for text in ("D-32", "Karimireddy"))
