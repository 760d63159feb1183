"""The pieces of methods: distillation, contrast over taps, the projection; and edges that no oracle reaches, where a
method is another one bit for bit: a radius of 0, no epochs, a bound never met. Runs are on real digits, with weight
decay, clipping, momentum, learning-rate decay, unequal clients and partial participation on.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor, nn
from torch.nn.functional import normalize, softplus

from fedray.algorithms.auxiliary import AuxiliaryLoss, FedRCL, kl
from fedray.algorithms.base import Output, Received, Server, Sum, Vectors
from fedray.algorithms.feature_terms import correlation, crowding, missing_variance
from fedray.algorithms.fedsol import FedSOL
from fedray.client import Population
from fedray.datasets.dataset import Dataset, Samples
from fedray.engine.exact_sum import Accumulator, add_up
from fedray.engine.messages import ClientTask
from fedray.engine.process.backend import InlineBackend
from fedray.engine.process.worker import Worker
from fedray.engine.server.simulation import Simulation
from fedray.models.network import Layout, Network
from fedray.papers.variants import FedSOLForms, ScaffoldForms
from tests.algorithms.digits import before_its_step, final, problem
from tests.algorithms.test_contract import NORMALISED


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_kl_of_equal_logits_has_no_gradient_at_all() -> None:
    """Exactly 0: a unit vector of rounding noise would be a perturbation of full length (D-34)."""
    target = 10 * random(50, 10)
    logits = target.clone().requires_grad_()
    assert not torch.autograd.grad(kl(target, logits), logits)[0].any()


def rcl(tap: Tensor, y: list[int], **options: float) -> float:
    """FedRCL's term for one tap."""
    return float(FedRCL.parse("algorithm", options).term(Output(tap, tap, (tap,)), torch.tensor(y)))


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


def test_fedsol_does_not_follow_noise() -> None:
    """D-34: a gradient below 1e-8 counts as 0."""
    method, c = moved(radius="fixed")
    assert torch.equal(method.perturbed(c, 1e-10 * random(12, seed=2)), c.theta)


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


def test_without_spread_there_is_no_gradient() -> None:
    """All samples equal: neither a standard deviation nor a median has a derivative there; both give 0, not NaN."""
    for term in (missing_variance, crowding, correlation):
        features = torch.full((4, 3), 1 / 3, requires_grad=True)
        (gradient,) = torch.autograd.grad(term(features), features)
        assert torch.equal(gradient, torch.zeros_like(gradient)), term.__name__


REDUCTIONS = [
    ("fedgloss rho=0 alpha=0.3 rho_l=0", "feddyn alpha=0.3"),
    ("fedwmsam rho=0 adaptive=false variates=false alpha=0.3", "fedcm alpha=0.3"),
    ("fedgen hidden=12 noise=4 steps=3 epochs=0", "fedavg"),
    ("feddisco a=0 b=0", "fedavg"),
    ("fedrep body_epochs=2", "fedbabu"),
    ("fedala threshold=1.0e-9 start_epochs=11", "fedala start_epochs=11"),  # never settles
    ("fedala threshold=1.0e+9 start_epochs=30", "fedala start_epochs=11"),  # at the first chance
]


def parse(text: str) -> str | dict[str, Any]:
    """`name option=value ...` as an algorithm section."""
    name, *options = text.split()
    values = (option.replace(":", ": ").partition("=") for option in options)
    return {"name": name, **{key: yaml.safe_load(value) for key, _, value in values}} if options else name


@pytest.mark.parametrize(("left", "right"), REDUCTIONS)
def test_reduction(left: str, right: str) -> None:
    assert torch.equal(final(parse(left)).theta, final(parse(right)).theta)


def test_fedsmoo_corrected_after_one_first_step() -> None:
    """μ_i = e after one step from μ = s = 0, so μ_i - e = 0: s is 0, not 0/0 (D-16)."""
    options = {"batch_size": "full", "local_epochs": 1, "rounds": 1}
    assert not final({"name": "fedsmoo", "perturbation_dual": "corrected"}, **options).server["s"].any()
