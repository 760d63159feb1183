"""A client as a method sees it: gradients, of a part and by a tensor, losses, taps, running statistics; and what a
method must not change."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedray.algorithms.base import Vectors
from fedray.algorithms.logit_adjustment import FedRS
from fedray.client import LocalClient
from fedray.datasets.dataset import Dataset
from fedray.engine.messages import Broadcast, ClientTask
from fedray.engine.process.backend import InlineBackend
from fedray.engine.process.worker import Worker
from fedray.engine.server.simulation import Simulation
from fedray.models import make_model_spec
from fedray.models.network import Network
from tests import small
from tests.algorithms.digits import problem


def make(model: Any, x: np.ndarray, y: np.ndarray, method: str = "fedavg") -> tuple[Worker, Broadcast]:
    """A worker whose only client has these samples as one batch, and the message of its first round."""
    data = Dataset("test", x, y, x, y, int(y.max()) + 1, client_train=np.zeros(len(y), np.int64))
    training = {"rounds": 1, "local_steps": 3, "batch_size": "full"}
    built = small.problem(method, (1, 1), model, "natural", arrays=data, training=training)
    running = Simulation(built, InlineBackend())
    return Worker(built), running._make_broadcast(running._make_server(0, 1))


def client_of(model: Any, x: np.ndarray, y: np.ndarray) -> LocalClient:
    """The client on its first batch."""
    worker, sent = make(model, x, y)
    c = worker.trainer.start(sent, ClientTask(0, 1.0, Vectors()))
    c.start_step(0, torch.from_numpy(x), torch.from_numpy(y))
    return c


def gaussian(n: int, d: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    return np.random.default_rng(0).normal(size=(n, d)).astype(np.float32), np.arange(n, dtype=np.int64) % classes


def test_a_gradient_belongs_to_its_caller_and_to_one_theta() -> None:
    """No later call changes it, nor does it change theta; unused parameters get zeros."""
    c = client_of(5, *gaussian(8, 4, 3))
    first, theta = c.grad(c.theta), c.theta.clone()
    kept = first.clone()
    second = c.grad(c.theta + 1)
    c.full_grad(c.theta - 1)
    c.predict(c.theta + 2)
    assert torch.equal(first, kept)
    assert not torch.equal(first, second)
    assert torch.equal(c.theta, theta)
    assert torch.equal(c.grad(c.theta), kept)
    only_body = c.grad(c.theta, lambda forward: forward(c.x).features.sum())
    assert torch.equal(only_body * c.layout.part("head"), torch.zeros_like(only_body))
    assert only_body.abs().sum() > 0
    # The network holds one theta: a prediction at another inside a loss would differentiate at the wrong point.
    c = client_of({"name": "mlp", "hidden": []}, *gaussian(8, 4, 3))
    with pytest.raises(RuntimeError, match="before it"):
        c.grad(c.theta, lambda forward: (forward(c.x).logits - c.predict(c.theta + 1).logits).square().mean())
    c = client_of({"name": "mlp", "hidden": []}, *gaussian(8, 4, 3))
    target = c.predict(c.theta + 1).logits
    assert c.grad(c.theta, lambda forward: (forward(c.x).logits - target).square().mean()).abs().sum() > 0


class Normalised(nn.Sequential):
    """BatchNorm on the input itself, so that its statistics do not depend on the parameters; one frozen layer."""

    def __init__(self) -> None:
        super().__init__(nn.BatchNorm1d(2), nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 2))


def test_a_full_gradient_takes_no_chunk_of_one_sample() -> None:
    """501 samples: BatchNorm cannot train on 500 and 1, but on 251 and 250."""
    x, y = gaussian(501, 2, 2)
    c = client_of(f"{__name__}:Normalised", x, y)
    g = c.full_grad(c.theta)

    def add_up(part: slice) -> Tensor:
        samples, labels = torch.from_numpy(x[part]), torch.from_numpy(y[part])
        return c.grad(c.theta, lambda forward: cross_entropy(forward(samples).logits, labels, reduction="sum"))

    assert torch.allclose(g, (add_up(slice(251)) + add_up(slice(251, 501))) / 501, atol=1e-7)


def test_the_received_model_answers_with_the_statistics_received_with_it() -> None:
    """After three steps other tensors, even with equal values, use the current statistics; no statistics move."""
    worker, sent = make(f"{__name__}:Normalised", *gaussian(4, 2, 2))
    network = worker.network
    c, _ = worker.trainer.train(sent, ClientTask(0, 0.25, Vectors()))
    assert (c.received_buffers != network.buffers).all()
    present, shard = network.buffers.clone(), torch.from_numpy(gaussian(4, 2, 2)[0])

    def answers(theta: Tensor, statistics: Tensor, x: Tensor = c.x) -> Tensor:
        normalised = (x - statistics[:2]) / (statistics[2:] + 1e-5).sqrt()
        scale, shift, weight, bias = c.layout.views(theta).values()
        frozen, frozen_bias = network.frozen["1.weight"], network.frozen["1.bias"]
        return ((scale * normalised + shift) @ frozen.T + frozen_bias) @ weight.T + bias

    for theta, statistics in ((c.theta_0, c.received_buffers), (c.theta_0.clone(), present), (c.theta, present)):
        assert torch.allclose(c.predict(theta).logits, answers(theta, statistics), atol=1e-6)
        assert torch.allclose(c.shard(theta)[0].logits, answers(theta, statistics, shard), atol=1e-6)
        assert torch.equal(network.buffers, present)
    assert torch.allclose(c.second.predict(c.theta_0).logits, answers(c.theta_0, network.initial_buffers), atol=1e-6)
    c.second.adopt_statistics()
    assert torch.allclose(c.second.predict(c.theta).logits, answers(c.theta, present), atol=1e-6)
    assert torch.equal(c.second.state.second_buffers, present)
    worker, sent = make(f"{__name__}:Normalised", *gaussian(4, 2, 2), "moon")
    kept = worker.trainer.train(sent, ClientTask(0, 0.25, Vectors()))[0].state  # of the model that was trained
    assert torch.equal(kept.second_buffers, worker.network.buffers)
    assert not torch.equal(kept.second_buffers, worker.network.initial_buffers)


IMAGES = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def client(name: str) -> LocalClient:
    """A client of the digits problem on its first batch, at a theta of its own."""
    built = problem(name)
    worker, running = Worker(built), Simulation(built, InlineBackend())
    c = worker.trainer.start(running._make_broadcast(running._make_server(0, 1)), ClientTask(2, 1.0, Vectors()))
    c.theta = c.theta + 0.1 * torch.randn(c.layout.size, generator=torch.Generator().manual_seed(0))
    c.start_step(0, *worker.train_samples.make_batch(c.indices[:16]))
    return c


def test_a_loss_is_a_method_with_tensors_or_a_function() -> None:
    """The same gradient; a part is named by its keyword alone."""
    c, scales = client("fedrs"), torch.rand(10)
    method = FedRS()
    found = c.grad(c.theta, method.scaled_loss, scales, part="body")
    expected = c.grad(c.theta, lambda forward: cross_entropy(scales * forward(c.x).logits, c.y), part="body")
    assert torch.equal(found, expected)
    with pytest.raises(TypeError, match="positional arguments"):
        c.grad(c.theta, method.scaled_loss, scales, "body")  # type: ignore[arg-type]


def test_a_resnets_taps_are_those_before_the_activation() -> None:
    """The stem's ReLU works in place and each block calls its own twice; still the mean of the last input is found."""
    spec = make_model_spec("resnet18")
    module = spec.build((3, 32, 32), 10)
    taps = Network(module, taps=spec.taps)(IMAGES).taps
    x = module.bn1(module.conv1(IMAGES))
    assert torch.allclose(taps[0], x.mean((2, 3)), atol=1e-6)
    x = module.maxpool(torch.relu(x))
    for stage, tap in zip((module.layer1, module.layer2), taps[1:], strict=False):
        x = stage[0](x)
        before = stage[1].bn2(stage[1].conv2(torch.relu(stage[1].bn1(stage[1].conv1(x))))) + x
        assert torch.allclose(tap, before.mean((2, 3)), atol=1e-5)
        x = torch.relu(before)


class Projected(nn.Module):
    """MOON's kind of model: features of its own behind the body, not on the way to the logits."""

    def __init__(self, own: bool) -> None:
        super().__init__()
        self.body, self.projection, self.classifier = nn.Linear(64, 8), nn.Linear(8, 4), nn.Linear(8, 10)
        self.own, self.calls, self.seen = own, 0, torch.zeros(0)
        self.body.register_forward_hook(lambda *_: setattr(self, "calls", self.calls + 1))

    head = "classifier"

    def features(self, x: Tensor) -> Tensor:
        h = self.body(x.flatten(1))
        return self.projection(h) if self.own else h

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.body(x.flatten(1)) if self.own else self.features(x))


@pytest.mark.parametrize(("own", "width", "calls"), [(True, 4, 2), (False, 8, 1)])
def test_a_models_own_features(own: bool, width: int, calls: int) -> None:
    """Used if they exist; the body runs a second time only if forward() does without them."""
    module = Projected(own)
    assert Network(module)(torch.ones(2, 64)).features.shape == (2, width)
    assert module.calls == calls
