"""The local optimiser around a direction: clip, weight decay, momentum, learning rate; batches; a client's view."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout

from fedray.algorithms import ALGORITHMS
from fedray.algorithms.base import Algorithm, Client, Server, Vectors
from fedray.algorithms.fedavg import FedAvg, FedProx
from fedray.algorithms.fedsam import FedSAM
from fedray.client import LocalClient, Population
from fedray.datasets.dataset import Dataset, Samples
from fedray.engine.backend import InlineBackend
from fedray.engine.local_training import batches, train_client
from fedray.engine.messages import Broadcast, ClientTask
from fedray.engine.simulation import Simulation
from fedray.engine.worker import Worker
from fedray.models.network import Network
from fedray.sections import Training
from tests.algorithms.digits import problem as small
from tests.algorithms.quadratic import Case, check

ONE = [[(1, 1, -2, 3), (1, 1, -3, -3.75)]]
"""One client whose gradients are (3, -4) at x = (1, -1) and (3, 4) at (0, 0.25)."""


def test_clip_then_weight_decay_then_momentum_then_lr() -> None:
    """C = 2.5, wd = m = η = ½, x = (1, -1). Step 0: (3, -4) clips to (1.5, -2); + ½ x = (2, -2.5) = v; y = (0, 0.25).

    Step 1: (3, 4) clips to (1.5, 2); + ½ y = (1.5, 2.125); v = ½ (2, -2.5) + that = (2.5, 0.875); y = (-1.25, -0.1875).
    """
    check(
        Case(
            {"name": "fedavg"},
            [{"theta": (-1.25, -0.1875)}],
            samples=ONE,
            start=(1, -1),
            training={"clip_norm": 2.5, "weight_decay": 0.5, "momentum": 0.5},
        )
    )


def test_a_direction_within_the_clip_norm_is_left_alone() -> None:
    """C = 5.5 > ||(3, -4)||: y = (1, -1) - ½ (3, -4)."""
    check(
        Case(
            {"name": "fedavg"}, [{"theta": (-0.5, 1)}], samples=[ONE[0][:1]], start=(1, -1), training={"clip_norm": 5.5}
        )
    )


def test_learning_rate_decays_per_round_and_momentum_restarts() -> None:
    """η = ½, ¼, one step a round with g = y - b, b = (-2, 3), m = ½: y = (1, -1) - ½ (3, -4) = (-0.5, 1);
    with no velocity left over, y = (-0.5, 1) - ¼ (1.5, -2) = (-0.875, 1.5).
    """
    check(
        Case(
            {"name": "fedavg"},
            [{"theta": (-0.5, 1)}, {"theta": (-0.875, 1.5)}],
            samples=[ONE[0][:1]],
            start=(1, -1),
            training={"lr_decay": 0.5, "momentum": 0.5},
        )
    )


def test_sam_ascends_the_bare_gradient() -> None:
    """ρ = 5, C = 5, wd = ½, x = (1, -1): e = (3, -4), without weight decay; g~ = (6, -8) clips to (3, -4);
    weight decay at x, not at x + e: q = (3.5, -4.5), y = (-0.75, 1.25).
    """
    check(
        Case(
            {"name": "fedsam", "rho": 5.0},
            [{"theta": (-0.75, 1.25)}],
            samples=[ONE[0][:1]],
            start=(1, -1),
            training={"clip_norm": 5.0, "weight_decay": 0.5},
        )
    )


CLIP_SCOPE: dict[str, tuple[dict[str, Any], float]] = {
    "feddyn": ({"alpha": 1.0}, 1.0),
    "fedspeed": ({"alpha": 1.0, "rho": 0}, 1.0),
    "fedsmoo": ({"alpha": 1.0, "rho": 0}, 1.0),
    "fedlesam-d": ({"alpha": 1.0, "rho": 0}, 1.0),
    "fedtoga": ({"alpha": 1.0, "rho": 0, "beta": 0}, 1.0),
    "feddc": ({"alpha": 1.0}, 0.0),
}
"""Options that leave the direction FedDyn's, and whether the authors' code keeps α y out of the clip."""


@pytest.mark.parametrize("name", CLIP_SCOPE)
def test_clip_scope(name: str) -> None:
    """α = 1, H = (1, 3), C = 1.5, wd = η = ½, x = (1, -1), one step, one client: q = (3, -4) + H = (4, -1).

    In the authors' scope q - αx = (3, 0) is clipped to (1.5, 0); + αx = (2.5, -1); + ½ x = (3, -1.5);
    u = (-1.5, 0.75), h = H + u = (-0.5, 3.75), x + u + h = (-1, 3.5).
    In ours q clips to (1.5/√17) q, + ½ x = (1.9552138, -0.8638034), u = (-0.9776069, 0.4319017) and
    x + 2 u + H = (0.0447862, 2.8638034).
    """
    options, pull = CLIP_SCOPE[name]
    variates = {"c": (0, 0)} if name == "feddc" else {"mu": (0, 0)} if name == "fedsmoo" else {}
    kept = {"x_old": (1, -1)} if name == "fedlesam-d" else variates
    for scope in ("direction", "code"):
        expected = (-1, 3.5) if scope == "code" and pull else (0.0447862, 2.8638034)
        check(
            Case(
                {"name": name, **options},
                [{"theta": expected}],
                samples=[ONE[0][:1]],
                start=(1, -1),
                training={"clip_norm": 1.5, "clip_scope": scope, "weight_decay": 0.5},
                server={"h": (1, 3)},
                clients={0: {"h": (1, 3), **kept}},
            )
        )


def test_clip_scope_of_fedprox() -> None:
    """μ = 1, C = 2.5, η = ½, x = (1, -1), K = 2, b = (-2, 3). First step: q = (3, -4), less μx is (2, -3), norm √13:
    (2.5/√13) (2, -3) + (1, -1) = (2.3867505, -3.0801257), y = (-0.1933752, 0.5400629).
    Then q = y - b + (y - x) = (0.6132496, -0.9198742), less μy = (0.8066248, -1.4599371), norm 1.668 < C: q it is;
    y = (-0.5, 1).
    """
    check(
        Case(
            {"name": "fedprox", "mu": 1.0},
            [{"theta": (-0.5, 1.0)}],
            samples=[ONE[0][:1]],
            start=(1, -1),
            training={"clip_norm": 2.5, "clip_scope": "code", "local_epochs": 2},
        )
    )


def test_server_lr_scales_only_the_averaged_update() -> None:
    """FedDyn's first round has U = h = (0.25, 1.0625) (`rounds_first.feddyn`): x = ½ U + h."""
    check(
        Case(
            {"name": "feddyn", "alpha": 0.5},
            [{"theta": (0.375, 1.59375), "server.h": (0.25, 1.0625)}],
            training={"server_lr": 0.5},
        )
    )


def test_full_batch_is_the_mean_over_the_shard() -> None:
    """Client 1's two samples at x = 0: ((-4, 3) + (-3, -1))/2 = (-3.5, 1); y = -½ of it, twice with two steps: the
    mean gradient at (1.75, -0.5) is ((-0.5, 2.5) + (-1.25, -1.5))/2 = (-0.875, 0.5), y = (2.1875, -0.75).
    """
    two = [[(2, 1, 2, -3), (1, 1, 3, 1)]]
    check(Case({"name": "fedavg"}, [{"theta": (1.75, -0.5)}], samples=two, training={"batch_size": "full"}))
    check(
        Case(
            {"name": "fedavg"},
            [{"theta": (2.1875, -0.75)}],
            samples=two,
            training={"batch_size": "full", "local_epochs": None, "local_steps": 2},
        )
    )


def test_last_batch_is_a_mean_of_what_is_left() -> None:
    """Three samples, batches of two: the first step is `full_batch`'s, y = (1.75, -0.5); the third sample, g0, counts
    whole: (4.75, -5), y = (1.75, -0.5) - ½ (4.75, -5).
    """
    check(
        Case(
            {"name": "fedavg"},
            [{"theta": (-0.625, 2)}],
            samples=[[(2, 1, 2, -3), (1, 1, 3, 1), (1, 2, -3, 2)]],
            training={"batch_size": 2},
        )
    )


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"batch_size": 4, "local_epochs": 2}, [4, 4, 2, 4, 4, 2]),
        ({"batch_size": 4, "local_steps": 4}, [4, 4, 2, 4]),
        ({"batch_size": 4, "local_steps": 1}, [4]),
        ({"batch_size": "full", "local_epochs": 3}, [10, 10, 10]),
        ({"batch_size": 64, "local_epochs": 1}, [10]),
    ],
)
def test_batches(options: dict[str, Any], sizes: list[int]) -> None:
    """Ten samples: every epoch is a permutation, cut in order; `steps` knows the number beforehand."""
    training = Training(**options)
    drawn = list(batches(training, 10, seed=1, round=2, client=3))
    assert [len(batch) for batch in drawn] == sizes
    assert training.steps(10) == len(sizes)
    epoch = np.concatenate(drawn)[:10] if sum(sizes) >= 10 else np.concatenate(drawn)
    assert len(set(epoch)) == len(epoch)
    again = np.concatenate(list(batches(training, 10, seed=1, round=2, client=3)))
    assert np.array_equal(np.concatenate(drawn), again)


def test_order_depends_on_seed_round_and_client_only() -> None:
    training = Training(batch_size="full", local_epochs=2)
    first, second = (tuple(batch) for batch in batches(training, 20, 0, 0, 0))
    others = [tuple(next(batches(training, 20, *key))) for key in ((1, 0, 0), (0, 1, 0), (0, 0, 1))]
    assert len({first, second, *others}) == 5
    ordered = Training(batch_size=3, local_epochs=1, shuffle=False)
    assert np.array_equal(np.concatenate(list(batches(ordered, 20, 0, 0, 0))), np.arange(20))


def client_of(module: nn.Module, x: np.ndarray, y: np.ndarray, **options: Any) -> LocalClient:
    """A client on its first batch, which is its whole shard."""
    network = Network(module)
    theta = network.theta.clone()
    data = Dataset("test", x, y, x, y, int(y.max()) + 1)
    population = Population(Samples(x, y, data, "cpu"), data.num_classes, 0, 1, len(x))
    c = LocalClient(
        **{
            **dict(
                id=0,
                population=population,
                network=network,
                indices=np.arange(len(x)),
                theta_0=theta,
                message=Vectors(),
                state=Vectors(),
                round=0,
                steps=1,
                per_epoch=1,
                lr=0.1,
                momentum=0.0,
                weight=1.0,
            ),
            **options,
        }
    )
    c.start_step(0, torch.from_numpy(x), torch.from_numpy(y))
    return c


def gaussian(n: int, d: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, d)).astype(np.float32), np.arange(n, dtype=np.int64) % classes


def test_a_gradient_belongs_to_its_caller() -> None:
    """No later call changes it, nor does it change theta; unused parameters get zeros."""
    c = client_of(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), *gaussian(8, 4, 3))
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
    assert torch.equal(only_body * c.layout.head, torch.zeros_like(only_body))
    assert only_body.abs().sum() > 0


def test_full_gradient_is_the_mean_over_all_samples() -> None:
    """Batch by batch or in one go: the gradient of the mean loss; 1,203 samples are three of its batches."""
    c = client_of(nn.Linear(4, 3), *gaussian(1203, 4, 3))
    assert torch.allclose(c.full_grad(c.theta), c.grad(c.theta), rtol=1e-4, atol=1e-7)


class Normalised(nn.Module):
    """BatchNorm on the input itself, so that its statistics do not depend on the parameters; one frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.frozen = nn.Linear(2, 2).requires_grad_(False)
        self.classifier = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.frozen(self.norm(x)))


def trained(algorithm: Algorithm, **training: Any) -> tuple[LocalClient, dict[str, Any], Network]:
    """One client with 4 samples, full batch, trained on `Normalised` from zero buffers means and unit variances."""
    x, y = gaussian(4, 2, 2)
    torch.manual_seed(0)
    network = Network(Normalised())
    start = network.buffers.clone()
    c, uploads = train_client(
        algorithm,
        network,
        Population(Samples(x, y, Dataset("test", x, y, x, y, 2), "cpu"), 2, 0, 1, 4),
        np.arange(4),
        Training(batch_size="full", **training),
        Broadcast(0, 0.1, network.theta.clone(), start, Vectors(), 1),
        ClientTask(0, 0.25, Vectors()),
    )
    return c, uploads, network


def test_running_statistics_follow_the_first_pass_of_a_step() -> None:
    """Momentum 0.1, two steps: mean = (1 - 0.9²) batch mean, with SAM's second passes as without; uploaded as a
    difference with the client's weight.
    """
    mean = torch.from_numpy(gaussian(4, 2, 2)[0]).mean(0)
    for algorithm in (FedAvg(), FedSAM(rho=0.1)):
        _, uploads, network = trained(algorithm, local_steps=2)
        assert torch.allclose(network.buffers[:2], 0.19 * mean, rtol=1e-6)
        assert uploads["buffers"].weight == 0.25
        assert torch.allclose(uploads["buffers"].vector[:2], 0.19 * mean, rtol=1e-6)


class Peculiar(nn.Module):
    """Dropout as a function, which only the module's own mode switches, and statistics that depend on a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(64, momentum=None)
        self.classifier = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(dropout(self.norm(x.flatten(1)), 0.5, self.training))


def test_a_client_does_not_depend_on_who_trained_before() -> None:
    """In one process or two: the same uploads, whatever the module counts; and testing twice gives the same loss."""
    built = small("fedavg", model={"name": "tests.algorithms.test_canonical_step:Peculiar"})
    network = built.network("cpu")
    broadcast = Broadcast(0, 0.1, network.theta.clone(), network.buffers.clone(), Vectors(), 2)
    tasks = [ClientTask(0, 0.5, Vectors()), ClientTask(1, 0.5, Vectors())]
    together = Worker(built).train(broadcast, tasks).sums
    apart = [Worker(built).train(broadcast, [task]).sums for task in tasks]
    assert all(torch.equal(together[name], apart[0][name] + apart[1][name]) for name in together)
    worker = Worker(built)
    first, second = (worker.evaluate(broadcast.theta, broadcast.buffers, [0]) for _ in range(2))
    assert torch.equal(first["loss"], second["loss"])


def test_frozen_parameters_never_move() -> None:
    """Weight decay, momentum and clipping leave parameters without gradient exactly where they were."""
    for algorithm in (FedAvg(), FedSAM(rho=0.1), FedProx(mu=1.0)):
        c, _, _ = trained(algorithm, local_steps=3, weight_decay=0.1, momentum=0.9, clip_norm=0.1, clip_scope="code")
        moved = (c.theta - c.theta_0 != 0).float()
        assert torch.equal(moved * (1 - c.layout.trainable), torch.zeros_like(moved))
        assert moved.sum() > 0


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_a_method_modifies_nothing_it_was_given(name: str) -> None:
    """Received vectors and the state before are the same after a client has trained: retries and resumes rely on it."""
    built = small({"name": name})
    network, algorithm = built.network("cpu"), built.config.algorithm
    theta = network.theta.clone()
    simulation = Simulation(built, InlineBackend())
    simulation.step()
    before = simulation.state()
    server = Server(before.theta, before.server, network.layout, 6, 3, 1, 0.1)
    client = next(iter(simulation.cohort(0)))
    state = before.clients.get(int(client), Vectors())
    message = algorithm.message(server)
    given = {
        "theta": theta,
        **{f"state.{k}": v for k, v in state.items()},
        **{f"message.{k}": v for k, v in message.items()},
    }
    copies = {key: v.clone() for key, v in given.items()}
    samples = Samples(built.data.x_train, built.data.y_train, built.data, "cpu")
    c, _ = train_client(
        algorithm,
        network,
        Population(samples, 10, 0, 6, 330),
        built.shards[client],
        built.config.training,
        Broadcast(1, 0.1, theta, before.buffers, message, 3),
        ClientTask(int(client), 0.5, state),
    )
    assert all(torch.equal(v, copies[key]) for key, v in given.items())
    assert not torch.equal(c.theta, theta)
    assert state.keys() <= c.state.keys()


def test_a_loss_cannot_evaluate_elsewhere() -> None:
    """The network holds one theta: a prediction at another inside a loss would differentiate at the wrong point."""
    c = client_of(nn.Linear(4, 3), *gaussian(8, 4, 3))
    with pytest.raises(RuntimeError, match="before it"):
        c.grad(c.theta, lambda forward: (forward(c.x).logits - c.predict(c.theta + 1).logits).square().mean())
    c = client_of(nn.Linear(4, 3), *gaussian(8, 4, 3))
    target = c.predict(c.theta + 1).logits
    assert c.grad(c.theta, lambda forward: (forward(c.x).logits - target).square().mean()).abs().sum() > 0


class Reserved(FedAvg):
    """Uploads under the engine's own name."""

    def upload(self, c: Client) -> dict[str, Any]:
        return {"update": None}


def test_reserved_upload_names_are_refused() -> None:
    with pytest.raises(ValueError, match="update"):
        trained(Reserved(), local_steps=1)


def test_a_full_gradient_takes_no_chunk_of_one_sample() -> None:
    """501 samples: BatchNorm cannot train on 500 and 1, but on 251 and 250."""
    x, y = gaussian(501, 2, 2)
    torch.manual_seed(0)
    c = client_of(Normalised(), x, y)
    g = c.full_grad(c.theta)
    parts = [
        c.grad(
            c.theta,
            lambda forward, s=s: cross_entropy(
                forward(torch.from_numpy(x[s])).logits, torch.from_numpy(y[s]), reduction="sum"
            ),
        )
        for s in (slice(0, 251), slice(251, 501))
    ]
    assert torch.allclose(g, sum(parts) / 501, atol=1e-7)
