"""Cohorts, weights, empty clients; commits only after a round; divergence is caught in its round, with the client, and
the run ends, or continues as if without that client. What methods send through exact sums: the smallest values that
matter survive, and large ones are no divergence.

`pixels` are digits whose first row is black and that are not normalised: the 8 · 16 weights of its pixels in a hidden
layer of 16 get no gradient. All 100 clients are in every cohort then, so π_i is about 1/100."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy import ndarray
from torch import Tensor

import fedray
from fedray.algorithms import ALGORITHMS
from fedray.common.errors import Diverged, UserError
from fedray.common.vectors import Vectors
from fedray.datasets.arrays import Digits
from fedray.datasets.dataset import Dataset
from fedray.engine import exact_sum
from fedray.engine.disk.checkpoint import Checkpoints
from fedray.engine.exact_sum import REST
from fedray.engine.loop import run
from fedray.engine.messages import Broadcast, ClientTask, Reply
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.result import Result
from fedray.engine.sampling import weigh_cohort
from fedray.engine.server.simulation import Simulation
from fedray.partitions.held_out import Split
from fedray.partitions.shards import Shards
from tests import small
from tests.algorithms.digits import data, final, problem
from tests.algorithms.test_contract import NORMALISED


def simulation(sizes: tuple[int, ...] = (1,) * 40, per_round: int | float = 8, **clients: Any) -> Simulation:
    """A run whose cohorts are inspected; client i has sizes[i] samples."""
    config = small.config(clients={"total": len(sizes), "per_round": per_round, **clients}, partition="natural")
    shards = Shards.from_owner(np.repeat(np.arange(len(sizes)), sizes), len(sizes))
    return Simulation(Problem(config, data(), Split(shards)), InlineBackend())


def test_fixed_cohorts() -> None:
    """Exactly M different clients, ascending; every round another draw; everyone gets their turn; repeatable."""
    running = simulation()
    drawn = [running.draw_cohort(t) for t in range(60)]
    assert all(len(c) == 8 and len(set(c)) == 8 and list(c) == sorted(c) for c in drawn)
    assert (len({tuple(c) for c in drawn}), set(np.concatenate(drawn))) == (60, set(range(40)))
    assert all(np.array_equal(c, simulation().draw_cohort(t)) for t, c in enumerate(drawn[:5]))
    counts = np.bincount(np.concatenate([running.draw_cohort(t) for t in range(500)]), minlength=40)
    assert abs(counts - 100).max() < 5 * np.sqrt(500 * 0.2 * 0.8)  # binomial(500, 8/40)
    for fraction, size in ((0.01, 1), (1.0, 40), (0.3, 12)):  # max(floor(fraction x 40), 1)
        assert len(simulation(per_round=fraction).draw_cohort(0)) == size, fraction


def test_bernoulli_cohorts() -> None:
    """M varies: binomial(40, 0.2) has mean 8 and variance 6.4; each client is equally likely; none is empty."""
    running = simulation(sampling="bernoulli")
    sizes = np.array([len(running.draw_cohort(t)) for t in range(600)])
    assert abs(sizes.mean() - 8) < 5 * np.sqrt(6.4 / 600)
    assert 5 < sizes.var() < 8
    few = simulation((1,) * 5, 0.05, sampling="bernoulli")
    rare = [few.draw_cohort(t) for t in range(200)]
    assert min(len(c) for c in rare) == 1  # (0.95)^5 = 77 % of the draws are empty and repeated
    assert np.mean([len(c) for c in rare]) == pytest.approx(0.25 / (1 - 0.95**5), abs=0.12)  # five deviations of 0.33
    assert set(np.concatenate(rare)) == set(range(5))
    with pytest.raises(
        UserError, match=r"^clients\.per_round: found 1e-09 of 5 clients, 5 of them with samples; 10000 draws"
    ):
        simulation((1,) * 5, 1e-9, sampling="bernoulli").draw_cohort(0)
    tenth = simulation(per_round=4, sampling="bernoulli")  # a number of clients: probability 4/40
    assert abs(np.mean([len(tenth.draw_cohort(t)) for t in range(600)]) - 4) < 5 * np.sqrt(3.6 / 600)


def test_listed_cohorts_are_followed() -> None:
    cohorts = [[3, 1], [0], [5, 2, 4]]
    running = Simulation(problem("scaffold", rounds=3, clients={"cohorts": cohorts}), InlineBackend())
    seen: set[int] = set()
    for t, expected in enumerate(cohorts):
        assert list(running.draw_cohort(t)) == sorted(expected)
        running.step()
        seen |= set(expected)
        assert set(running.state.clients) == seen
        assert all(running.state.active[i] == t + 1 for i in expected)


def test_empty_clients_take_no_part() -> None:
    """Clients 0 and 2 have no samples: they are never drawn, and a cohort of only these two is redrawn."""
    sizes = (0, 3, 0, 4, 5)
    running = simulation(sizes, 2)
    drawn = [running.draw_cohort(t) for t in range(50)]
    assert (set(np.concatenate(drawn)), min(len(c) for c in drawn)) == ({1, 3, 4}, 1)
    assert list(simulation(sizes, 2, cohorts=[[2, 3]] * 100).draw_cohort(0)) == [3]
    given = {"partition": {"name": "dirichlet", "alpha": 0.02, "min_size": 0}, "training": {"rounds": 1}}
    empty = np.flatnonzero(small.problem(clients=(60, 1), **given).split.train.sizes == 0)[:2].tolist()
    with small.refused("clients.cohorts: every client of round 0 is empty"):
        small.problem(clients={"total": 60, "cohorts": [empty]}, **given)


def test_weights() -> None:
    """1/M; n_i / Σ_cohort n_j; and by whole batches of 16, of which 35 samples have 2 and 65 have 4."""
    cohort = np.array([1, 3])
    for aggregation, first in (("uniform", 1 / 2), ("samples", 35 / 100), ("batches", 2 / 6)):
        given = problem("fedavg", aggregation=aggregation)
        found = weigh_cohort(given.config, given.split.train.sizes, cohort, pytest.fail)  # no labels are counted
        assert found == pytest.approx({1: first, 3: 1 - first}), aggregation
    listed = {"total": 2, "cohorts": [[0, 1], [0]]}
    with small.refused("training.aggregation: found batches; no client of round 2 has a whole one of 16"):
        problem("fedavg", (15, 16), clients=listed, rounds=2, batch_size=16, aggregation="batches")


class Failing(InlineBackend):
    def __init__(self, error: Exception | None) -> None:
        self.error = error

    def train(self, broadcast: Broadcast, tasks: list[ClientTask]) -> list[Reply]:  # type: ignore[override]
        parts = super().train(broadcast, tasks)
        if broadcast.round == 2:
            if self.error:
                raise self.error
            parts[0].diverged = {5: "later", 4: "the training loss is not finite"}
        return parts


@pytest.mark.parametrize("error", [None, RuntimeError("an actor was lost")])
def test_a_round_that_fails_changes_nothing(error: Exception | None) -> None:
    running = Simulation(problem("fedtoga"), Failing(error))
    running.step()
    running.step()
    before = running.state.digest()
    with pytest.raises(RuntimeError if error else Diverged) as raised:
        running.step()
    if not error:
        assert (raised.value.round, raised.value.client) == (3, 4)
    assert running.state.digest() == before
    again = Simulation(problem("fedtoga"), InlineBackend())
    again.restore(running.state)
    assert small.finish(again).state.digest() == final("fedtoga").digest()


def test_a_model_that_overflows_on_the_server_has_diverged() -> None:
    """One clipped step at η = 1000 moves entries by tens, which is summable; times η_g = 3e38 it is not finite."""
    with pytest.raises(Diverged, match="diverged in round 1, the server: theta"):
        final("fedavg", server_lr=3e38, lr=1000.0, batch_size="full", local_epochs=1, rounds=1)
    with pytest.raises(Diverged, match="diverged in round 1, the server: v is"):  # squares of 10^21; theta stays
        final("fedadam", server_lr=1e20, lr=1000.0, batch_size="full", local_epochs=1, rounds=1)


def diverging(algorithm: Any, cohorts: Sequence[ndarray] | None = None, **training: object) -> Problem:
    """12 clients, 5 per round; NotANumber's directions are NaN from round 3 on if a client's samples are odd."""
    clients = {"total": 12, "per_round": 5} | ({} if cohorts is None else {"cohorts": [c.tolist() for c in cohorts]})
    base = {"rounds": 6, "local_epochs": 1, "batch_size": 32, "lr_decay": 0.9, "aggregation": "samples"}
    return small.problem(algorithm, clients, 16, 0.5, training={**base, **training}, evaluation={"every": 1})


def kept(whole: Problem) -> tuple[list[ndarray], list[int]]:
    """The cohorts without diverged clients, and the number of these after each round."""
    simulation, sizes = Simulation(whole, InlineBackend()), whole.split.train.sizes
    drawn = [simulation.draw_cohort(t) for t in range(6)]
    cohorts = [cohort if t < 2 else cohort[sizes[cohort] % 2 == 0] for t, cohort in enumerate(drawn)]
    counts = [len(before) - len(after) for before, after in zip(drawn, cohorts, strict=True)]
    return cohorts, [sum(counts[: t + 1]) for t in range(6)]


def test_a_run_that_drops_is_the_run_in_which_they_were_not_drawn(tmp_path: Path) -> None:
    """Bit for bit: weights, the cohort that is told and all sums of the method are those of the remaining clients. The
    count goes on from a checkpoint."""
    dropping = diverging("tests.plugins:NotANumber", on_divergence="drop")
    cohorts, counts = kept(dropping)
    assert counts[1] == 0 < counts[2] < counts[5], "the example drops nobody"
    assert min(map(len, cohorts)) > 0
    expected = run(diverging("tests.plugins:NotANumber", cohorts), InlineBackend())
    found = run(dropping, InlineBackend())
    assert found.state.digest() == expected.state.digest()
    assert [row["dropped_clients"] for row in found.history] == counts
    assert [{k: v for k, v in row.items() if k != "dropped_clients"} for row in found.history] == expected.history
    first = Simulation(dropping, InlineBackend())
    for _ in range(4):
        first.step()
    Checkpoints(tmp_path).save(first.state)
    assert run(dropping, InlineBackend(), Checkpoints(tmp_path).load()).history == found.history


def test_a_state_that_goes_wrong_is_caught_in_its_round_and_one_without_anybody_has_diverged() -> None:
    whole = diverging("tests.plugins:NotANumber")
    odd = (whole.split.train.sizes % 2).nonzero()[0][:2]
    with pytest.raises(Diverged, match=f"diverged in round 3, client {odd[0]}: "):
        run(diverging("tests.plugins:NotANumber", [odd] * 6, on_divergence="drop"), InlineBackend())
    # Its update is finite, so nothing else would show it before the client is drawn again.
    simulation, seen = Simulation(diverging("fedavg"), InlineBackend()), set[int]()
    for t in range(6):
        cohort = set(simulation.draw_cohort(t).tolist())
        if again := seen & cohort:
            break
        seen |= cohort
    bad = min(again)
    with pytest.raises(Diverged, match=f"diverged in round {t + 1}, client {bad}: its state count is not finite"):
        run(diverging({"name": "tests.plugins:BadState", "bad": bad}), InlineBackend())


ROUNDS, WIDTH = 2, 16
DEAD = torch.zeros(WIDTH, 8, 8, dtype=torch.bool)
DEAD[:, 0] = True


@cache
def pixels(largest: float) -> Dataset:
    """The digits with pixels from 0 to `largest`."""
    whole = Digits().load()
    x, x_test = (part.astype(np.float32) * np.float32(largest / 255) for part in (whole.x_train, whole.x_test))
    x[:, :, 0] = x_test[:, :, 0] = 0
    return Dataset("digits", x, whole.y_train, x_test, whole.y_test, 10)


def run_all(method: Mapping[str, Any], largest: float = 1.0, **training: Any) -> Result:
    """Rounds of all 100 clients, with steps of one batch of 14 samples."""
    training = {"rounds": ROUNDS, "local_steps": 2, "lr": 0.01, **training}
    sections = small.sections(method, (100, 100), WIDTH, training=training, evaluation={"every": ROUNDS, "last": 1})
    return fedray.simulate(sections, data=pixels(largest))


@cache
def fedavg() -> Result:
    """A run in which what has no gradient stays at x⁰."""
    return run_all({"name": "fedavg"})


def dead(vector: Tensor) -> Tensor:
    """The entries of the weights that get no gradient."""
    return vector[: DEAD.numel()][DEAD.flatten()]


def hold(floor: float, without_gradient: float | None = None) -> Callable[[Vectors], None]:
    """Check that v is at least `floor` and, where there is no gradient, as given; by default `floor`."""

    def check(server: Vectors) -> None:
        expected = floor if without_gradient is None else without_gradient
        assert server.v.min() >= floor * (1 - 1e-6)
        assert torch.allclose(dead(server.v), torch.tensor(expected), rtol=1e-3, atol=0)
        assert server.v.max() > 1.5 * expected, "nothing has a gradient"

    return check


def check_tensors(server: Vectors) -> None:
    """FedAdamW's means over a tensor: each has entries with a gradient."""
    assert server.v.min() > 0


def check_momentum(server: Vectors) -> None:
    """FedMuon's M is 0 without a gradient."""
    assert torch.equal(dead(server.momentum), torch.zeros(8 * WIDTH))
    assert server.momentum.abs().max() > 0


SQUARED, LEFT = 1e-3**2, 1e-3**2 * 0.99**ROUNDS
"""τ², the first v of the server's optimisers, and what is left of it after `ROUNDS` rounds at β2 = 0.99."""
MOMENTS: list[tuple[dict[str, Any], Callable[[Vectors], None]]] = [
    ({"name": "fedlada"}, hold(1e-16)), ({"name": "fedlada", "eps": 1e-18}, hold(1e-36)),
    ({"name": "fedlada", "form": "vision"}, hold(0.0)), ({"name": "fedadamw"}, check_tensors),
    ({"name": "fedadamw", "second_moment": "full"}, hold(0.0)), ({"name": "fedmuon"}, check_momentum),
    ({"name": "fedadam"}, hold(LEFT)), ({"name": "fedyogi"}, hold(LEFT, SQUARED)),
    ({"name": "fedadagrad"}, hold(SQUARED)), ({"name": "fedadagrad", "start": "zero"}, hold(0.0)),
]  # fmt: skip


@pytest.mark.parametrize(("method", "check"), MOMENTS, ids=[" ".join(map(str, m.values())) for m, _ in MOMENTS])
def test_dead_parameters_in_a_cohort_of_100(method: dict[str, Any], check: Callable[[Vectors], None]) -> None:
    """No divergence, averaged moments of at least the formula's floor, and what has no gradient stays at x⁰."""
    result = run_all(method, lr=0.1)
    check(result.state.server)
    assert torch.equal(dead(result.theta), dead(fedavg().theta))


@pytest.mark.parametrize(
    "method",
    [{"name": "fedlada"}, {"name": "fedlada", "form": "vision"}, {"name": "fedadamw", "second_moment": "full"}],
    ids=lambda method: " ".join(map(str, method.values())),
)
def test_large_gradients_are_no_divergence(method: dict[str, Any]) -> None:
    """Pixels up to 2,000 give gradients of hundreds, whose v were too large for the scale of 2^12 that they had."""
    assert run_all(method | {"beta2": 0.9}, 2000.0, lr=1e-4).state.server.v.max() > 64


VARIANTS: list[tuple[Any, dict[str, Any]]] = [
    *((name, {}) for name in sorted(ALGORITHMS)), ("fedavg", NORMALISED),
    ({"name": "fedper", "newcomer": "average"}, {}), ({"name": "lg-fedavg", "newcomer": "average"}, {}),
    ({"name": "scaffold@forms", "variates": "samples"}, {}), ({"name": "fedspeed@forms", "dual_mean": "cohort"}, {}),
]  # fmt: skip
"""Methods, and the options and models with which they send more."""


class Listing(InlineBackend):
    def __init__(self) -> None:
        self.names: set[str] = set()

    def train(self, broadcast: Broadcast, tasks: Sequence[ClientTask]) -> list[Reply]:
        replies = super().train(broadcast, tasks)
        self.names.update(name for reply in replies for name in reply.sums)
        return replies


def test_every_upload_is_in_the_table() -> None:
    """The table of `fedray.engine.exact_sum` has each upload of each method, with its kind of sum, and no other."""
    rows = [line.strip("| ").split(" | ") for line in (exact_sum.__doc__ or "").splitlines() if line.startswith("| ")]
    table = {name: kind for names, *_, kind in rows[1:-1] for name in names.split(", ")}
    backend = Listing()
    for method, options in VARIANTS:
        Simulation(problem(method, **options, rounds=1, local_epochs=1), backend).step()
    kinds = {name: "wide" if name + REST in backend.names else "plain" for name in backend.names}
    assert {name: kind for name, kind in kinds.items() if not name.endswith(REST)} == table
