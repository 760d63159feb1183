"""Hessian-vector products and eigenvalues of models whose Hessian is known, or differences of gradients give it."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedray.config import RunConfig
from fedray.datasets.dataset import Dataset, Samples
from fedray.models.network import Network
from fedray.papers.sharpness import compute_surface, draw_filter_normalised, find_top_eigenvalues
from fedray.probes.landscape import Landscape


def landscape(module: nn.Module, x: np.ndarray, y: np.ndarray, network: Network | None = None) -> Landscape:
    network = network or Network(module)
    data = Dataset("made", x, y, x, y, int(y.max()) + 1)
    return Landscape(network, network.buffers.clone(), Samples(x, y, data, "cpu"), np.arange(len(y)))


def softmax_regression(samples: int = 700) -> tuple[Landscape, Tensor, np.ndarray]:
    """A linear model of 4 inputs and 3 classes at a random θ, and its Hessian (15, 15), by hand.

    With p = softmax(W x + b) and z = (x, 1) the Hessian of the mean cross-entropy is the mean over samples of
    (diag p - p p') ⊗ z z', for any labels. θ is W row by row, then b. 700 samples are two chunks.
    """
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


def test_products_of_softmax_regression() -> None:
    found, theta, hessian = softmax_regression()
    columns = torch.stack([found.multiply_hessian(theta, v) for v in torch.eye(15)]).numpy()
    np.testing.assert_allclose(columns, hessian, atol=2e-7)


def test_eigenvalues_of_softmax_regression() -> None:
    found, theta, hessian = softmax_regression()
    values, vectors = find_top_eigenvalues(
        lambda v: found.multiply_hessian(theta, v), np.random.default_rng(1).normal(size=15)
    )
    np.testing.assert_allclose(values, np.linalg.eigvalsh(hessian)[::-1][:5], rtol=1e-4)
    np.testing.assert_allclose(hessian @ vectors[0], values[0] * vectors[0], atol=1e-4)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1)


def test_the_largest_are_meant_by_sign() -> None:
    """diag(-100, 7, 6, 5, 4, 3, 2, 0, ...): -100 is the largest in size, and is none of the five."""
    diagonal = torch.tensor([-100.0, 7, 6, 5, 4, 3, 2, *[0] * 30])
    values, _ = find_top_eigenvalues(lambda v: diagonal * v, np.ones(37))
    assert values == pytest.approx([7, 6, 5, 4, 3], rel=1e-4)


def small(name: str, classes: int = 3) -> tuple[dict[str, Any], np.ndarray, Dataset]:
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
    model, x, data = small(name)
    config = RunConfig.parse({"data": "digits", "partition": "iid", "model": model, "algorithm": "fedavg"})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = config.model.build(data.input_shape, 80 if data.tokens else data.num_classes)
    network = Network(module)
    found = landscape(module, x, data.y_train, network)
    theta = network.theta.clone()
    v = torch.from_numpy(np.random.default_rng(1).normal(size=len(theta)).astype(np.float32))
    v /= torch.linalg.vector_norm(v)
    product = found.multiply_hessian(theta, v)

    double = module.double()
    inputs = found.samples.make_batch(np.arange(4))[0]

    def gradient(at: Tensor) -> Tensor:
        with torch.no_grad():
            for parameter, value in zip(double.parameters(), network.layout.views(at).values(), strict=True):
                parameter.copy_(value)
        loss = cross_entropy(
            double(inputs if inputs.dtype == torch.int64 else inputs.double()), torch.from_numpy(data.y_train)
        )
        return torch.cat(
            [g.reshape(-1) for g in torch.autograd.grad(loss, list(double.parameters()), materialize_grads=True)]
        )

    h = 1e-5
    difference = (gradient(theta.double() + h * v.double()) - gradient(theta.double() - h * v.double())) / (2 * h)
    scale = float(difference.norm())
    assert scale > 0
    assert float((product - difference).norm()) < 2e-3 * scale


def test_frozen_parameters_are_no_directions() -> None:
    """The bias of the first layer, 5 of 43 parameters, has no row; the others' Hessian is symmetric."""
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    module[0].bias.requires_grad_(False)
    x = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    found = landscape(module, x, np.arange(20) % 3)
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
    first, second = (
        network.layout.views(d) for d in draw_filter_normalised(network.theta, network.layout, np.random.default_rng(0))
    )
    for direction in (first, second):
        assert direction["0.weight"].flatten(1).norm(dim=1).tolist() == pytest.approx([5, 2])
        assert not direction["0.bias"].any()
        assert not direction["1.weight"].any()
    products = (first["0.weight"] * second["0.weight"]).flatten(1).sum(1)
    assert products.tolist() == pytest.approx([0, 0], abs=1e-5)


def test_a_filter_of_one_number_has_no_second_direction() -> None:
    network = Network(nn.Linear(1, 3))
    first, second = draw_filter_normalised(network.theta, network.layout, np.random.default_rng(0))
    assert torch.allclose(first.abs(), network.theta.abs() * network.layout.mask(lambda name: name == "weight"))
    assert not second.any()


def test_surface() -> None:
    """Entry (i, j) is the loss at θ + steps[i] d1 + steps[j] d2; the first index belongs to the first direction."""
    found, theta, _ = softmax_regression(30)
    first, second = torch.eye(15)[0], 2 * torch.eye(15)[7]
    losses = compute_surface(found, theta, (first, second), np.array([-1.0, 0, 0.5]))
    assert losses.shape == (3, 3)
    assert losses[1, 1] == found.compute_loss(theta)
    assert losses[2, 0] == found.compute_loss(theta + 0.5 * first - second)
    assert losses[0, 2] != losses[2, 0]
