"""The pieces of methods: distillation, contrast over taps, FedSOL's radii and perturbation, the projection."""

from math import log
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div, log_softmax, normalize, softplus

from fedray.algorithms.auxiliary import AuxiliaryLoss, FedRCL, kl, others
from fedray.algorithms.base import Output, Received, Server, Sum, Vectors
from fedray.algorithms.feature_terms import correlation, crowding, missing_variance
from fedray.algorithms.fedsol import FedSOL, Projection
from fedray.client import Population
from fedray.datasets.dataset import Dataset, Samples
from fedray.engine.exact_sum import Accumulator, add_up
from fedray.engine.messages import ClientTask
from fedray.engine.process.backend import InlineBackend
from fedray.engine.process.worker import Worker
from fedray.engine.server.simulation import Simulation
from fedray.models.network import Layout, Network
from fedray.papers.variants import FedSOLForms, ScaffoldForms
from tests.algorithms.clients import before_its_step
from tests.algorithms.digits import final, problem
from tests.algorithms.test_contract import NORMALISED


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_kl_is_torchs() -> None:
    target, logits = 3 * random(7, 5), 3 * random(7, 5, seed=1)
    expected = kl_div(log_softmax(logits, 1), log_softmax(target, 1), reduction="batchmean", log_target=True)
    assert torch.allclose(kl(target, logits), expected, rtol=1e-5, atol=1e-6)


def test_kl_of_equal_logits_has_no_gradient_at_all() -> None:
    """Exactly 0: a unit vector of rounding noise would be a perturbation of full length (D-34)."""
    target = 10 * random(50, 10)
    logits = target.clone().requires_grad_()
    assert not torch.autograd.grad(kl(target, logits), logits)[0].any()


def test_not_true_logits() -> None:
    logits = torch.tensor([[1.0, 2, 3], [4, 5, 6], [7, 8, 9]])
    assert others(logits, torch.tensor([0, 1, 2])).tolist() == [[2, 3], [4, 6], [7, 8]]


def test_not_true_distillation_sees_neither_shifts_nor_the_true_class() -> None:
    """A constant on all logits and anything on the true class change nothing; of two classes nothing is left."""
    target, logits, y = random(6, 4), random(6, 4, seed=1), torch.tensor([0, 1, 2, 3, 0, 1])
    plain = kl(others(target, y), others(logits, y))
    true = logits.scatter_add(1, y[:, None], random(6, 1, seed=2))
    assert torch.equal(kl(others(target, y), others(true, y)), plain)
    assert torch.allclose(kl(others(target + 3, y), others(logits - 2, y)), plain, rtol=1e-5)
    assert kl(others(target[:, :2], y % 2), others(logits[:, :2], y % 2)) == 0


def rcl(tap: Tensor, y: list[int], **options: float) -> float:
    """FedRCL's term for one tap."""
    return float(FedRCL.parse("algorithm", options).term(Output(tap, tap, (tap,)), torch.tensor(y)))


def test_fedrcl_of_identical_class_mates() -> None:
    """s = 1 within the class: the penalty is log 2 for each; without it and without other classes nothing is left."""
    alike = torch.tensor([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]])
    assert rcl(alike, [0, 0, 0]) == pytest.approx(log(2), rel=1e-4)
    assert rcl(alike, [0, 0, 0], relaxation=0) == pytest.approx(0, abs=1e-6)


def test_fedrcl_of_samples_without_mates() -> None:
    """All classes distinct: no penalty, and orthogonal features leave log(1 + 2 e^-20) of the contrast."""
    assert rcl(torch.eye(4), [0, 1, 2, 3], contrast=0) < 1e-12
    assert rcl(torch.eye(4), [0, 1, 2, 3]) < 1e-7
    assert rcl(torch.eye(4)[:1], [0]) < 1e-7


LAYOUT = Layout(("a.weight", "a.bias", "h.weight"), ((2, 3), (2,), (2, 2)), frozenset({"h.weight"}))


def moved(part: str = "all", **options: Any) -> tuple[FedSOL, Any]:
    """A client of FedSOL that has moved from x by a random vector."""
    method = FedSOLForms.parse("algorithm", {"perturb": part, **options})
    local = Vectors(perturbed=LAYOUT.part(part))
    return method, SimpleNamespace(theta=random(12), theta_0=random(12, seed=1), layout=LAYOUT, local=local)


def test_lambda_by_column_by_layer_and_by_tensor() -> None:
    """|y - x|, every column (dim0), layer or tensor of norm 1; a bias is one column.

    Layer `a` is its weight (2, 3) and its bias (2,) together, so neither has norm 1 by itself; `h` has a weight only.
    """
    method, c = moved()
    by_column = LAYOUT.views(method.radii(c))
    assert torch.allclose(by_column["a.weight"].norm(dim=0), torch.ones(3))
    assert torch.allclose(by_column["a.bias"].norm(), torch.ones(()))
    views = LAYOUT.views((c.theta - c.theta_0).abs())
    assert torch.allclose(by_column["h.weight"], views["h.weight"] / views["h.weight"].norm(dim=0))
    by_tensor = LAYOUT.views(moved(lambda_norm="tensor")[0].radii(c))
    assert all(torch.allclose(by_tensor[name], view / view.norm()) for name, view in views.items())
    by_layer = LAYOUT.views(moved(lambda_norm="layer")[0].radii(c))
    norm = torch.cat([views["a.weight"].flatten(), views["a.bias"]]).norm()
    assert torch.allclose(by_layer["a.weight"], views["a.weight"] / norm)
    assert torch.allclose(by_layer["a.bias"], views["a.bias"] / norm)
    assert float(by_layer["a.bias"].norm()) < 0.9
    assert torch.allclose(by_layer["h.weight"], views["h.weight"] / views["h.weight"].norm())


def test_lambda_of_a_head_as_equation_7_has_it() -> None:
    """5,120 weights and 10 biases that have all moved alike: each entry is 1/sqrt(5130), the bias sqrt(10/5130) = 0.044
    of the layer's norm 1; by tensor it would be 1.
    """
    layout = Layout(("head.weight", "head.bias"), ((10, 512), (10,)))
    c = SimpleNamespace(theta=torch.full((5130,), -0.3), theta_0=torch.zeros(5130), layout=layout)
    found = layout.views(moved(lambda_norm="layer")[0].radii(c))
    assert float(found["head.bias"].norm()) == pytest.approx((10 / 5130) ** 0.5)
    assert float(moved(lambda_norm="layer")[0].radii(c).norm()) == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize("norm", ["dim0", "layer", "tensor"])
def test_lambda_of_a_stack_of_clients_is_that_of_each(norm: str) -> None:
    method, c = moved(lambda_norm=norm)
    stack = SimpleNamespace(theta=random(3, 12, seed=5), theta_0=c.theta_0, layout=LAYOUT, local=c.local)
    each = [method.radii(SimpleNamespace(theta=theta, theta_0=c.theta_0, layout=LAYOUT)) for theta in stack.theta]
    assert torch.allclose(method.radii(stack), torch.stack(each))
    g = random(3, 12, seed=6)
    alone = [
        method.perturbed(SimpleNamespace(theta=theta, theta_0=c.theta_0, layout=LAYOUT, local=c.local), row)
        for theta, row in zip(stack.theta, g, strict=True)
    ]
    assert torch.allclose(method.perturbed(stack, g), torch.stack(alone))


@pytest.mark.parametrize("part", ["all", "head", "body"])
def test_fedsol_perturbs_its_part_by_rho(part: str) -> None:
    method, c = moved(part, radius="fixed", rho=0.5)
    e = method.perturbed(c, random(12, seed=2)) - c.theta
    assert float(e.norm()) == pytest.approx(0.5, rel=1e-4)
    assert not e[LAYOUT.part(part) == 0].any()


def test_fedsol_does_not_follow_noise() -> None:
    """D-34: a gradient below 1e-8 counts as 0."""
    method, c = moved(radius="fixed")
    assert torch.equal(method.perturbed(c, 1e-10 * random(12, seed=2)), c.theta)


def test_projection_leaves_the_orthogonal_part() -> None:
    """Against a conflicting L_p nothing along it is left and q is no longer than g; otherwise q = g."""
    method = Projection.parse("algorithm", {"proximal": "fedprox"})
    for seed in range(20):
        g, away = random(12, seed=seed), random(12, seed=seed + 100)
        c = SimpleNamespace(theta=away, theta_0=torch.zeros(12), grad=lambda theta, g=g: g)
        q, conflict = method.gradient(c), float(g @ away) < 0  # type: ignore[arg-type]
        assert torch.equal(q, g) or conflict
        assert q.norm() <= g.norm() * (1 + 1e-6)
        if conflict:
            assert abs(float(q @ away)) < 1e-5


def test_scaffold_weighs_large_shards_by_samples() -> None:
    """A million samples and three: Δc = 1000, 10 and a cohort of ten give 10 (1e6 · 1000 + 3 · 10)/(1e6 + 3)."""
    method, sums = ScaffoldForms(variates="samples"), Accumulator()
    network = Network(nn.Linear(4, 3))
    x, y = np.zeros((1, 4), np.float32), np.zeros(1, np.int64)
    population = Population(
        samples=Samples(x, y, Dataset("test", x, y, x, y, 3), "cpu"),
        classes=3,
        seed=0,
        clients=10,
        total_samples=1_000_003,
    )
    zero = torch.zeros_like(network.theta)
    for samples, change in ((10**6, 1000.0), (3, 10.0)):
        c = before_its_step(network, population, np.zeros(samples, np.int64))
        c.message, c.state, c.theta = Vectors(c=zero), Vectors(c=zero), c.theta_0 - 0.1 * change
        for name, upload in method.upload(c).items():
            assert isinstance(upload, Sum)
            sums.add(name, upload.vector, upload.weight, terms=10)
    server = Server(network.theta, Vectors(c=zero), network.layout, clients=1, cohort=10)
    method.aggregate(server, Received(Vectors(add_up([sums.sums]), update=zero)))
    assert torch.allclose(server.state.c, zero + 10 * (1e9 + 30) / 1_000_003, rtol=1e-4)


def test_moons_references_have_the_running_statistics_of_their_models() -> None:
    """Client 4 evaluates its last model with the statistics of its training two rounds ago, and x with those of x."""
    built = problem({"name": "moon", "mu": 2.0}, **NORMALISED, clients={"cohorts": [[4, 5], [1, 5], [4, 5], [0, 1]]})
    method, worker = built.config.algorithm, Worker(built)
    running = Simulation(built, InlineBackend())
    sent = running._make_broadcast(running._make_server(0, 2))
    running.step()
    running.step()
    state = running.state
    kept = state.clients[4]
    worker.trainer.train(sent, ClientTask(4, 0.5, Vectors()))
    assert torch.equal(kept.second_buffers, worker.network.buffers)
    c = worker.trainer.start(running._make_broadcast(running._make_server(2, 2)), ClientTask(4, 0.5, kept))
    c.start_step(0, *c.population.samples.make_batch(c.indices[:18]))
    c.grad(c.theta)
    apart = built.build_network("cpu")

    def features(theta: Tensor, statistics: Tensor) -> Tensor:
        apart.load(theta)
        apart.buffers.copy_(statistics)
        apart.train(False)
        with torch.no_grad():
            return normalize(apart(c.x).features)

    h = random(18, 12)
    towards, away = features(state.theta, state.buffers), features(kept.previous, kept.second_buffers)
    expected = 2.0 * softplus((normalize(h) * (away - towards)).sum(1) / 0.5).mean()
    assert float(method.term(Output(h, h), c.y, *method.references(c))) == pytest.approx(float(expected), rel=1e-5)
    assert final("moon").clients[4].keys() == {"previous"}


@pytest.mark.parametrize("name", ["fedntd", "fedavg-kl"])
def test_distillation_follows_the_received_running_statistics(name: str) -> None:
    """However far training has moved the client's own, the target stays: the loss at given logits is the same."""
    built = problem(name, **NORMALISED)
    worker = Worker(built)
    running = Simulation(built, InlineBackend())
    c = worker.trainer.start(running._make_broadcast(running._make_server(0, 3)), ClientTask(4, 0.5, Vectors()))
    c.start_step(0, *c.population.samples.make_batch(c.indices[:18]))
    output = Output(random(18, 10), random(18, 12))
    method = built.config.algorithm
    assert isinstance(method, AuxiliaryLoss)
    before = float(method.term(output, c.y, *method.references(c)))
    worker.network.buffers.add_(1.0)
    assert float(method.term(output, c.y, *method.references(c))) == before


def test_correlation() -> None:
    """Three samples (1, 1), (2, 2), (3, 1): z_1 = (-1, 0, 1), z_2 = (-1, 2, -1)/√3 · ... are uncorrelated: 0. With
    (3, 3) instead both are (-1, 0, 1): (Z'Z)_12 = 2, its square over n = 3.
    """
    assert correlation(torch.tensor([[1.0, 1], [2, 2], [3, 1]])) == pytest.approx(0, abs=1e-6)
    assert correlation(torch.tensor([[1.0, 1], [2, 2], [3, 3]])) == pytest.approx(4 / 3, rel=1e-6)
    assert correlation(torch.ones(1, 5)) == 0


def test_missing_variance() -> None:
    """Two classes, target √½. p_1 = (1, 0): std √½, nothing missing; (¾, ¼): std √½/2, half of the target missing."""
    assert missing_variance(torch.tensor([[1.0, 0], [0, 1]])) == pytest.approx(0, abs=1e-6)
    assert missing_variance(torch.tensor([[0.75, 0.25], [0.25, 0.75]])) == pytest.approx(0.5**0.5 / 2, rel=1e-6)


def test_crowding() -> None:
    """At 0, 1 and 3 on a line the squares are 1, 4, 9, the median 4: mean of e^-¼, e^-1, e^-9/4. Two equal ones leave
    the median of the others: 0, 0, 2 has 4 twice: (1 + 2/e)/3.
    """
    found = crowding(torch.tensor([[0.0], [1], [3]]))
    assert found == pytest.approx(float(torch.tensor([-0.25, -1, -2.25]).exp().mean()), rel=1e-6)
    assert crowding(torch.tensor([[0.0], [0], [2]])) == pytest.approx((1 + 2 / torch.e) / 3, rel=1e-6)


def test_without_spread_there_is_no_gradient() -> None:
    """All samples equal: neither a standard deviation nor a median has a derivative there; both give 0, not NaN."""
    for term in (missing_variance, crowding, correlation):
        features = torch.full((4, 3), 1 / 3, requires_grad=True)
        (gradient,) = torch.autograd.grad(term(features), features)
        assert torch.equal(gradient, torch.zeros_like(gradient)), term.__name__
