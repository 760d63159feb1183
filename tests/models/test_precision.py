"""bf16 and channels-last: float32 parts stay float32, gradients stay close, and runs without either are unchanged."""

from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from benchmarks import workloads
from fedray.common.errors import UserError
from fedray.config import RunConfig
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.server.simulation import Simulation
from fedray.models import make_model_spec
from fedray.models.network import Network
from tests import small
from tests.algorithms.digits import data

SHAPES: dict[str, tuple[int, ...]] = {
    "simple_cnn": (3, 32, 32),
    "lenet": (3, 32, 32),
    "emnist_cnn": (1, 28, 28),
    "resnet18": (3, 16, 16),
    "sl_vit": (3, 32, 32),
    "mlp": (1, 8, 8),
}


def config(**training: Any) -> RunConfig:
    training = {"rounds": 2, "local_epochs": 1, "batch_size": 16, **training}
    return small.config("fedtoga", model="simple_cnn", partition="natural", training=training)


def gradient(name: str, **options: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and gradient of one batch, both float32."""
    torch.manual_seed(0)
    network = Network(make_model_spec(name).build(SHAPES[name], 10), **options)
    network.train(True)
    x, y = torch.randn(16, *SHAPES[name]), torch.arange(16) % 10
    torch.manual_seed(1)  # dropout
    output = network(x)
    parts = torch.autograd.grad(cross_entropy(output.logits, y), network.trained)
    assert {t.dtype for t in (output.logits, output.features, *parts)} == {torch.float32}
    return output.logits.detach(), torch.cat([part.reshape(-1) for part in parts])


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_a_bf16_gradient_points_where_the_fp32_one_does(name: str) -> None:
    """bfloat16 keeps 8 bits: each rounding errs by up to 2^-9, so the angle stays small, though not zero."""
    _, exact = gradient(name)
    _, rounded = gradient(name, bf16=True, channels_last=True)
    assert not torch.equal(exact, rounded)
    assert float(torch.cosine_similarity(exact, rounded, dim=0)) > 0.98


def test_bf16_gradients_hold_nothing_uninitialised() -> None:
    """ResNet-18 on 16x16 ends in 3x3 convolutions of 1x1 images, so most of their weights see only padding."""
    exact = gradient("resnet18")[1]
    for _ in range(6):
        torch.full((5_000_000,), torch.inf)  # what the allocator hands out next
        rounded = gradient("resnet18", bf16=True)[1]
        assert float(torch.cosine_similarity(exact, rounded, dim=0)) > 0.98


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


def test_precision_and_layout_are_part_of_a_cells_identity() -> None:
    cells = [
        config(precision=precision, channels_last=last).hash_cell("x")
        for precision in ("fp32", "bf16")
        for last in (False, True)
    ]
    assert len(set(cells)) == 4


@pytest.mark.parametrize(
    ("model", "runtime", "precision", "innermost"),
    [
        ("simple_cnn", {}, "fp32", True),
        ("simple_cnn", {}, "bf16", True),  # measured to be faster on a CPU
        ("resnet18", {}, "fp32", False),
        ("resnet18", {}, "bf16", False),  # and not
        ("benchmarks.workloads:CNN", {}, "fp32", True),
        ("benchmarks.workloads:LeNet", {}, "fp32", False),
        ("simple_cnn", {"gpus_per_actor": 1}, "fp32", False),
        ("resnet18", {"gpus_per_actor": 1}, "tf32", True),
    ],
)
def test_the_layout_that_nobody_asked_for(model: str, runtime: dict[str, Any], precision: str, innermost: bool) -> None:
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
    torch.manual_seed(0)
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


def test_tf32_is_for_gpus() -> None:
    with pytest.raises(UserError, match=r"training\.precision: found tf32"):
        config(precision="tf32")
