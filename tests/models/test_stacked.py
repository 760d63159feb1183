"""Stacked gradients: each row has the bits of its model alone; what cannot have them has no stack."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from fedray.models.network import Network
from fedray.models.stacked import SMALLEST, Unstackable, compute_gradients, list_layers


class Own(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 2


class Named(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(8, 3))


class Doubled(Named):
    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = 2 * super().forward(x)
        return found


def build_mlp(*widths: int, between: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Flatten()]
    for k, (inputs, outputs) in enumerate(pairwise(widths)):
        layers += [between()] * (k > 0) + [nn.Linear(inputs, outputs)]
    return nn.Sequential(*layers)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "the quickstart's": (lambda: build_mlp(64, 32, 10), (1, 8, 8)),
    "one layer": (lambda: build_mlp(784, 10), (784,)),
    "wide": (lambda: build_mlp(64, 200, 10), (64,)),
    "tanh": (lambda: build_mlp(64, 48, 24, 10, between=nn.Tanh), (64,)),
    "gelu": (lambda: build_mlp(64, 32, 10, between=nn.GELU), (64,)),
    "nested, without a bias": (
        lambda: nn.Sequential(nn.Sequential(nn.Linear(64, 32, bias=False), nn.SiLU()), nn.Identity(), nn.Linear(32, 9)),
        (64,),
    ),
    "tokens": (lambda: nn.Sequential(nn.Embedding(7, 12), nn.Flatten(), nn.Linear(72, 10)), (6,)),
    "tokens one by one": (
        lambda: nn.Sequential(nn.Embedding(7, 16), nn.Linear(16, 16), nn.ReLU(), nn.Flatten(), nn.Linear(96, 10)),
        (6,),
    ),
}


@pytest.mark.parametrize("rows", [1, 2, 7, 64])
@pytest.mark.parametrize("samples", [2, 7, 19, 20])
@pytest.mark.parametrize("name", MODELS)
def test_a_row_has_the_bits_of_its_model_alone(name: str, samples: int, rows: int) -> None:
    """Every product has its operands alone, in the same order; so on one kind of machine after another.

    (x^T g)^T instead of g^T x, which autograd takes for a stacked product's weight, differs on AVX-512 in all rows of
    the head.
    """
    build, shape = MODELS[name]
    torch.manual_seed(rows)
    network = Network(build())
    theta = 0.3 * torch.randn(rows, network.layout.size)
    if name.startswith("tokens"):
        x: Tensor = torch.randint(0, 7, (rows, samples, *shape))
    else:
        x = torch.randn(rows, samples, *shape)
    y = torch.randint(0, 9, (rows, samples))
    losses, gradients = compute_gradients(network.layers, network.layout.shapes, theta, x, y)
    for row in range(rows):
        loss, gradient = network.compute_gradient(theta[row].clone(), x[row].clone(), y[row].clone())
        assert torch.equal(losses[row], loss)
        assert torch.equal(gradients[row], gradient)


def test_a_product_that_pytorch_computes_otherwise_is_refused() -> None:
    """2 x 9 x 20 = 360 numbers are multiplied in the head, fewer than 400; 3 x 9 x 20 = 540."""
    network = Network(build_mlp(64, 20, 9))
    for samples in (2, 3):
        batch = torch.randn(4, samples, 64), torch.zeros(4, samples, dtype=torch.int64)
        theta = torch.zeros(4, network.layout.size)
        if samples * 9 * 20 < SMALLEST:
            with pytest.raises(Unstackable):
                compute_gradients(network.layers, network.layout.shapes, theta, *batch)
        else:
            compute_gradients(network.layers, network.layout.shapes, theta, *batch)


def tied() -> nn.Module:
    twice = nn.Linear(8, 8)
    return nn.Sequential(twice, nn.ReLU(), twice)


def half_frozen() -> nn.Module:
    model = build_mlp(8, 8, 3)
    model[1].requires_grad_(False)
    return model


def hooked() -> nn.Module:
    model = build_mlp(8, 8, 3)
    model[1].register_forward_hook(lambda layer, inputs, output: 2 * output)
    return model


@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 3)),
        lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)),
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 3)),
        lambda: nn.Sequential(nn.Flatten(2), nn.Linear(8, 3)),
        lambda: nn.Sequential(nn.Embedding(5, 8, padding_idx=0), nn.Flatten(), nn.Linear(48, 3)),
        lambda: nn.Sequential(nn.Linear(8, 8), nn.ELU(inplace=True), nn.Linear(8, 3)),
        lambda: nn.Sequential(Own(8, 8), nn.Linear(8, 3)),
        tied,
        half_frozen,
        hooked,
        Doubled,
    ],
)
def test_models_with_anything_else_have_no_stack(build: Callable[[], nn.Module]) -> None:
    """Draws, statistics, sums over other axes, padding, a user's code, parameters in other places, hooks; autocast,
    whose kernels were not compared.
    """
    assert list_layers(build()) is None or Network(build()).layers is None
    assert [type(layer) for layer in list_layers(Named()) or []] == [nn.Flatten, nn.Linear]
    assert Network(Named()).layers
    assert Network(Named(), bf16=True).layers is None
