"""FedPAC: FedRep with the head first where nobody collaborates; the mixtures of heads."""

from typing import Any

import numpy as np
import pytest
import torch

from fedray.algorithms import fedpac
from fedray.algorithms.base import Received, Server, Vectors
from fedray.algorithms.fedpac import FedPAC, mixtures, on_simplex
from fedray.models.network import Layout
from tests.algorithms.digits import final, states

ALONE: dict[str, Any] = {"lr_decay": 1.0, "local_epochs": 3}


def test_without_alignment_and_collaboration_it_is_fedrep(monkeypatch: pytest.MonkeyPatch) -> None:
    """λ = 0, a_i = e_i, and one rate for both parts."""
    monkeypatch.setattr(fedpac, "mixtures", lambda h, v: torch.eye(len(v)))
    *_, left = states({"name": "fedpac", "lam": 0, "head_lr": 0.1}, **ALONE)
    right = final({"name": "fedrep", "body_epochs": 2}, **ALONE)
    assert torch.equal(left.theta, right.theta)
    assert all(torch.equal(kept.own, right.clients[i].own) for i, kept in left.clients.items())


def test_with_collaboration_it_is_not() -> None:
    """In the first round, where nothing is aligned, the bodies are equal and the heads are mixed."""
    left = final({"name": "fedpac", "head_lr": 0.1}, **ALONE, rounds=1)
    right = final({"name": "fedrep", "body_epochs": 2}, **ALONE, rounds=1)
    assert torch.equal(left.theta, right.theta)
    assert all((kept.own - right.clients[i].own).abs().max() > 1e-3 for i, kept in left.clients.items())
    aligned = final({"name": "fedpac", "head_lr": 0.1}, **ALONE).theta
    assert (aligned - final({"name": "fedpac", "head_lr": 0.1, "lam": 0}, **ALONE).theta).abs().max() > 1e-3


def test_one_client_keeps_its_head() -> None:
    options: dict[str, Any] = {**ALONE, "clients": {"cohorts": [[4]] * 4}}
    left = final({"name": "fedpac", "head_lr": 0.1, "lam": 0}, **options)
    right = final({"name": "fedrep", "body_epochs": 2}, **options)
    assert torch.equal(left.theta, right.theta)
    assert torch.equal(left.clients[4].own, right.clients[4].own)


def test_absent_clients_keep_their_head() -> None:
    first, second = states("fedpac", rounds=2, clients={"cohorts": [[0, 1, 2], [1, 3, 4]]})
    assert torch.equal(first.clients[0].own, second.clients[0].own)
    assert not torch.equal(first.clients[1].own, second.clients[1].own)


def test_a_class_that_the_cohort_lacks_keeps_its_mean() -> None:
    """Class 0: half a share of features (3, 4), all there is: (6, 8). Class 1 was known before, class 2 never was."""
    old = Vectors(prototypes=torch.tensor([[9.0, 9.0], [5.0, 7.0], [0.0, 0.0]]), known=torch.tensor([0.0, 1.0, 0.0]))
    server = Server(torch.zeros(1), old, Layout(("a",), ((1,),)), 6, 3)
    sums = torch.tensor([[3.0, 4.0], [0.0, 0.0], [0.0, 0.0]])
    got = Vectors(update=torch.zeros(1), prototypes=sums, parts=torch.tensor([0.5, 0.0, 0.0]))
    FedPAC().aggregate(server, Received(got))
    assert server.state.prototypes.tolist() == [[6, 8], [5, 7], [0, 0]]
    assert server.state.known.tolist() == [1, 1, 0]


def test_equal_clients_share_equally() -> None:
    h = torch.ones(4, 3, 2)
    assert torch.allclose(mixtures(h, torch.full((4,), 0.5)), torch.full((4, 4), 0.25))
    assert torch.allclose(mixtures(h, torch.zeros(4)), torch.full((4, 4), 0.25))


def test_distant_clients_stay_alone() -> None:
    """Weights go as 1/V_j where features agree, and to e_i as they part."""
    h = torch.zeros(3, 2, 2)
    assert torch.allclose(mixtures(h, torch.tensor([1.0, 2.0, 2.0]))[0], torch.tensor([0.5, 0.25, 0.25]))
    h[2] = 1e4
    assert torch.allclose(
        mixtures(h, torch.ones(3)), torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]), atol=1e-6
    )


@pytest.mark.parametrize("seed", range(5))
def test_the_mixture_is_the_minimum(seed: int) -> None:
    """Karush-Kuhn-Tucker: (Q a)_j equals a^T Q a where a_j > 0, and is no smaller elsewhere."""
    rng = np.random.default_rng(seed)
    factors = rng.normal(size=(20, 8))
    q = factors @ factors.T + np.diag(rng.random(20))
    a = on_simplex(q)
    assert a.sum() == pytest.approx(1)
    assert a.min() >= 0
    assert (a == 0).any()
    assert (q @ a - a @ q @ a)[a > 0] == pytest.approx(0, abs=1e-8)
    assert (q @ a - a @ q @ a).min() > -1e-8
