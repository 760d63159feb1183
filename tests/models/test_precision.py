"""bf16 and channels-last: float32 parts stay float32, gradients stay close, and runs without either are unchanged.
Stacked gradients: each row has the bits of its model alone; what cannot have them has no stack."""

import copy
from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks import workloads
from fedray.common.errors import UserError
from fedray.config import RunConfig
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.server.simulation import Simulation
from fedray.models import make_model_spec
from fedray.models.network import Network
from fedray.models.stacked import SMALLEST, Unstackable, compute_gradients, list_layers
from tests import small
from tests.algorithms.digits import data
from tests.conftest import each


def config(**training: Any) -> RunConfig:
    training = {"rounds": 2, "local_epochs": 1, "batch_size": 16, **training}
    return small.config("fedtoga", model="simple_cnn", partition="natural", training=training)


def gradient(name: str, **options: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and gradient of one batch, both float32."""
    torch.manual_seed(0)
    network = Network(make_model_spec(name).build((3, 32, 32), 10), **options)
    network.train(True)
    x, y = torch.randn(16, *(3, 32, 32)), torch.arange(16) % 10
    torch.manual_seed(1)  # dropout
    output = network(x)
    parts = torch.autograd.grad(cross_entropy(output.logits, y), network.trained)
    assert {t.dtype for t in (output.logits, output.features, *parts)} == {torch.float32}
    return output.logits.detach(), torch.cat([part.reshape(-1) for part in parts])


class Twice(nn.Module):
    """A model that uses a layer twice, so that its bits depend on how often the layer's weight is cast."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.body(x.flatten(1)).relu()).relu())


def build_small_images() -> nn.Module:
    """A model whose second convolution has a kernel larger than its 1x1 images, so that it runs in float32."""
    first, second = nn.Conv2d(1, 4, 3, stride=8, padding=1), nn.Conv2d(4, 8, 3, padding=1)
    return nn.Sequential(first, nn.ReLU(), second, nn.Flatten(), nn.Linear(8, 10))


@pytest.mark.parametrize("options", [{"dtype": torch.bfloat16}, {"enabled": False}])
@pytest.mark.parametrize("build", [Twice, build_small_images])
def test_an_autocast_block_around_changes_no_bit(build: Callable[[], nn.Module], options: dict[str, Any]) -> None:
    """Each forward pass casts the weights that it is given, and one with a block of its own inside does, too."""

    def descend() -> torch.Tensor:
        torch.manual_seed(0)
        network = Network(build(), bf16=True)
        theta, x, y = network.theta.clone(), torch.randn(16, 1, 8, 8), torch.arange(16) % 10
        for _ in range(3):
            theta = theta - 0.1 * network.compute_gradient(theta, x, y)[1]
        return theta

    expected = descend()
    with torch.autocast("cpu", **options):
        assert torch.equal(descend(), expected)


def test_bf16_steps_have_the_bits_of_plain_pytorch_but_large_kernels_run_in_float32() -> None:
    """A weight is cast once per forward pass, so the gradients of its uses are added up in bfloat16."""
    network = Network(Twice(), bf16=True)
    plain = copy.deepcopy(network.module)
    x, y = torch.randn(16, 1, 8, 8), torch.arange(16) % 10
    for _ in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            logits = plain(x)
        gradients = torch.autograd.grad(cross_entropy(logits.float(), y), list(plain.parameters()))
        expected = torch.cat([g.flatten() for g in gradients])
        assert torch.equal(network.compute_gradient(network.theta, x, y)[1], expected)
        network.theta -= 0.1 * expected
        with torch.no_grad():
            for parameter, gradient in zip(plain.parameters(), gradients, strict=True):
                parameter -= 0.1 * gradient
    network, seen = Network(build_small_images(), bf16=True), []
    for layer in (network.module[0], network.module[2]):
        layer.register_forward_hook(lambda module, given, output: seen.append(output.dtype))
    network(torch.randn(16, 1, 8, 8))
    assert seen == [torch.bfloat16, torch.float32]


@pytest.mark.parametrize("name", ["lenet", "resnet18"])
def test_channels_last_is_the_same_function(name: str) -> None:
    exact, other = gradient(name), gradient(name, channels_last=True)
    torch.testing.assert_close(other[0], exact[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(other[1], exact[1], rtol=1e-3, atol=1e-4)


def test_a_run_in_bf16_keeps_float32_vectors_and_is_the_same_each_time() -> None:
    def run() -> Simulation:
        simulation = Simulation(Problem.build(config(precision="bf16"), data()), InlineBackend())
        for _ in range(2):
            simulation.step()
        return simulation

    first, second = run().state, run().state
    assert first.digest() == second.digest()
    vectors = [first.theta, *first.server.values(), *(v for state in first.clients.values() for v in state.values())]
    assert {v.dtype for v in vectors} == {torch.float32}


@each(
    ("simple_cnn", {}, "fp32", True),
    ("simple_cnn", {}, "bf16", True),  # measured to be faster on a CPU
    ("resnet18", {}, "bf16", False),  # and not
    ("benchmarks.workloads:CNN", {}, "fp32", True),
    ("simple_cnn", {"gpus_per_actor": 1}, "fp32", False),
    ("resnet18", {"gpus_per_actor": 1}, "tf32", True),
)
def test_the_layout_that_nobody_asked_for(model: str, runtime: dict[str, Any], precision: str, innermost: bool) -> None:
    with pytest.raises(UserError, match=r"training\.precision: found tf32"):
        config(precision="tf32")  # is for GPUs
    whole = config().resolve() | {"model": model, "runtime": {"backend": "inline", **runtime}}
    whole["training"] |= {"precision": precision}
    run = RunConfig.parse(whole)
    assert run.channels_last == innermost
    whole["training"] |= {"channels_last": innermost}
    assert RunConfig.parse(whole).hash_cell("x") == run.hash_cell("x"), "given or not, the same cell"
    whole["training"] |= {"channels_last": not innermost}
    assert RunConfig.parse(whole).channels_last != innermost


def test_pooling_before_relu_has_the_same_bits() -> None:
    """LeNet as its authors write it, with half of the inputs so small that whole windows are negative, or tie at 0."""
    network, theirs = Network(make_model_spec("lenet").build((3, 32, 32), 10)), workloads.LeNet()
    with torch.no_grad():
        for own, other in zip(network.module.parameters(), theirs.parameters(), strict=True):
            other.copy_(own)
    x, y = torch.randn(16, 3, 32, 32), torch.arange(16) % 10
    x[:8] *= 1e-3
    loss, gradient = network.compute_gradient(network.theta, x, y)
    expected = cross_entropy(theirs(x), y)
    parts = torch.autograd.grad(expected, list(theirs.parameters()))
    assert torch.equal(loss, expected)
    assert torch.equal(gradient, torch.cat([part.reshape(-1) for part in parts]))


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

    (x^T g)^T instead of g^T x, which autograd takes for a stacked product, differs on AVX-512 in all rows of a head."""
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
        alone = network.compute_gradient(theta[row].clone(), x[row].clone(), y[row].clone())
        assert all(map(torch.equal, (losses[row], gradients[row]), alone))


def test_a_product_that_pytorch_computes_otherwise_is_refused() -> None:
    """2 x 9 x 20 = 360 numbers are multiplied in the head, fewer than 400; 3 x 9 x 20 = 540."""
    network = Network(build_mlp(64, 20, 9))
    for samples in (2, 3):
        batch = torch.randn(4, samples, 64), torch.zeros(4, samples, dtype=torch.int64)
        with pytest.raises(Unstackable) if samples * 9 * 20 < SMALLEST else nullcontext():
            compute_gradients(network.layers, network.layout.shapes, torch.zeros(4, network.layout.size), *batch)


def tied() -> nn.Module:
    twice = nn.Linear(8, 8)
    return nn.Sequential(twice, nn.ReLU(), twice)


def hooked() -> nn.Module:
    model = build_mlp(8, 8, 3)
    model[1].register_forward_hook(lambda layer, inputs, output: 2 * output)
    return model


@each(
    lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 3)),
    lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)),
    lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 3)),
    lambda: nn.Sequential(nn.Flatten(2), nn.Linear(8, 3)),
    lambda: nn.Sequential(nn.Embedding(5, 8, padding_idx=0), nn.Flatten(), nn.Linear(48, 3)),
    lambda: nn.Sequential(nn.Linear(8, 8), nn.ELU(inplace=True), nn.Linear(8, 3)),
    lambda: nn.Sequential(Own(8, 8), nn.Linear(8, 3)),
    tied,
    lambda: nn.Sequential(nn.Flatten(), nn.Linear(8, 8).requires_grad_(False), nn.ReLU(), nn.Linear(8, 3)),
    hooked,
    Doubled,
)
def test_models_with_anything_else_have_no_stack(build: Callable[[], nn.Module]) -> None:
    """Draws, statistics, sums over other axes, padding, a user's code, parameters in other places, hooks; autocast,
    whose kernels were not compared."""
    assert list_layers(build()) is None or Network(build()).layers is None
    assert [type(layer) for layer in list_layers(Named()) or []] == [nn.Flatten, nn.Linear]
    assert Network(Named()).layers
    assert Network(Named(), bf16=True).layers is None
