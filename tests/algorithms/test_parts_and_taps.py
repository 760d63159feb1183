"""Gradients by part of a model and by an extra tensor, the reported loss, taps, and a model's own features."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedray.algorithms import algorithm
from fedray.algorithms.base import Part
from fedray.algorithms.logit_adjustment import FedRS
from fedray.client import LocalClient
from fedray.engine.process.worker import Worker
from fedray.models import make_model_spec
from fedray.models.network import Network
from tests.algorithms.digits import before_its_step, problem

IMAGES = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def client(name: str = "fedavg") -> LocalClient:
    """A client of the digits problem on its first batch, at a theta of its own."""
    built = problem(name)
    worker, indices = Worker(built), built.shards[2]
    c = before_its_step(worker.network, worker.population, indices, client=2)
    c.theta = c.theta + 0.1 * torch.randn(c.layout.size, generator=torch.Generator().manual_seed(0))
    c.start_step(0, *worker.train_samples.make_batch(indices[:16]))
    return c


@pytest.mark.parametrize("part", ["head", "body"])
def test_gradient_of_a_part(part: Part) -> None:
    """The same numbers as in the whole gradient, and 0 elsewhere."""
    c = client()
    assert torch.equal(c.grad(c.theta, part=part), c.grad(c.theta) * c.layout.part(part))
    assert c.grad(c.theta, part=part).any()


def test_a_loss_is_a_method_with_tensors_or_a_function() -> None:
    """The same gradient; a part is named by its keyword alone."""
    c, scales = client("fedrs"), torch.rand(10)
    method = FedRS()
    found = c.grad(c.theta, method.scaled_loss, scales, part="body")
    expected = c.grad(c.theta, lambda forward: cross_entropy(scales * forward(c.x).logits, c.y), part="body")
    assert torch.equal(found, expected)
    with pytest.raises(TypeError, match="positional arguments"):
        c.grad(c.theta, method.scaled_loss, scales, "body")  # type: ignore[arg-type]


def test_gradient_by_an_extra_tensor() -> None:
    """CE of a shifted input: by theta at that input, by the shift the sum of the inputs' gradients."""
    c = client()
    shift = 0.1 * torch.randn(c.input_shape, generator=torch.Generator().manual_seed(1))
    by_theta, by_shift = c.grad_with(
        c.theta, shift, lambda forward, extra: cross_entropy(forward(c.x + extra).logits, c.y)
    )
    x = (c.x + shift).requires_grad_()
    (by_x,) = torch.autograd.grad(cross_entropy(c.network(x).logits, c.y), x)
    assert torch.allclose(by_shift, by_x.sum(0), rtol=1e-5, atol=1e-8)
    c.x = c.x + shift
    assert torch.equal(by_theta, c.grad(c.theta))


def test_the_reported_loss_is_the_cross_entropy_where_a_method_asks_for_it() -> None:
    """FedSOL's first gradient is of KL, 0 at x: the loss of its second one is reported, in a first step FedAvg's."""
    losses = []
    for name in ("fedavg", "fedsol", "fedavg-kl"):
        c = client(name)
        c.theta = c.theta_0
        method = algorithm(name)
        method.begin(c)
        method.direction(c)
        losses.append(float(c.loss))
    assert losses[0] == losses[1] == pytest.approx(losses[2])


TAPS = {"mlp": [200], "lenet": [64, 64, 384, 192], "mcmahan_cnn": [32, 64, 512], "resnet18": [64, 64, 128, 256, 512]}


@pytest.mark.parametrize("name", TAPS)
def test_taps(name: str) -> None:
    """The channels' means before each activation (for a ResNet: stem and four stages), FedRCL's taps."""
    spec = make_model_spec({"name": name})
    module = spec.build((3, 32, 32), 10)
    taps = Network(module, taps=spec.taps)(IMAGES).taps
    assert [tap.shape for tap in taps] == [(3, width) for width in TAPS[name]]
    assert all(tap.min() < 0 for tap in taps)
    layers = [m for m in module.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    if name != "resnet18":
        first = layers[0](IMAGES.flatten(1) if name == "mlp" else IMAGES)
        assert torch.allclose(taps[0], first.flatten(2).mean(2) if first.ndim == 4 else first, atol=1e-6)


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


def test_taps_cost_nothing_where_nobody_reads_them() -> None:
    assert problem("fedavg").build_network("cpu")(torch.zeros(2, 1, 8, 8)).taps == ()


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
    output = Network(module)(torch.ones(2, 64))
    assert output.features.shape == (2, width)
    assert module.calls == calls
