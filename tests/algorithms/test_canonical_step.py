"""The local optimiser around a direction: clip, weight decay, momentum, learning rate; batches; and a round of each
method, derived by hand in the docstring of its case in `rounds_*` (`quadratic.py` has the clients and the notation).
AdamW and Muon in its place: against PyTorch's, by hand, in reductions; refusals; what clients keep."""

import re
from collections.abc import Callable
from importlib import import_module
from inspect import isfunction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedray.algorithms import ALGORITHMS, algorithm
from fedray.algorithms.base import Algorithm
from fedray.algorithms.descent import SGD, Descent, Optimiser
from fedray.algorithms.local_optimizers import AdamW, Muon, MuonOptions
from fedray.common.errors import UserError
from fedray.config import Training
from fedray.engine.training.batches import draw_batches
from fedray.models import make_model_spec
from fedray.models.network import Layout, Network
from tests import small
from tests.algorithms.digits import final
from tests.algorithms.quadratic import Case, Point, check
from tests.conftest import each

CASES: dict[str, Callable[[], Case]] = {
    name: case
    for path in Path(__file__).parent.glob("rounds_*.py")
    for name, case in vars(import_module(f"tests.algorithms.{path.stem}")).items()
    if isfunction(case) and case.__annotations__ == {"return": Case}
}
"""The functions of `rounds_*` that take nothing and return a case."""

ONE = [[(1, 1, -2, 3), (1, 1, -3, -3.75)]]
"""One client whose gradients are (3, -4) at x = (1, -1) and (3, 4) at (0, 0.25)."""


def walk(training: dict[str, Any], end: Point, samples: Any = (ONE[0][:1],), start: Point = (1, -1)) -> None:
    """Check theta after a round of FedAvg, by default from x = (1, -1) with the first sample."""
    check(Case({"name": "fedavg"}, {"theta": end}, training=training, samples=list(samples), start=start))


def test_clip_then_weight_decay_then_momentum_then_lr() -> None:
    """C = 2.5, wd = m = η = ½, x = (1, -1). Step 0: (3, -4) clips to (1.5, -2); + ½ x = (2, -2.5) = v; y = (0, 0.25).

    Step 1: (3, 4) clips to (1.5, 2); + ½ y = (1.5, 2.125); v = ½ (2, -2.5) + that = (2.5, 0.875); y = (-1.25, -0.1875).
    """
    walk({"clip_norm": 2.5, "weight_decay": 0.5, "momentum": 0.5}, (-1.25, -0.1875), samples=ONE)
    # C = 5.5 > ||(3, -4)||: y = (1, -1) - ½ (3, -4).
    walk({"clip_norm": 5.5}, (-0.5, 1))


def test_batches_are_means_over_what_they_hold() -> None:
    """Client 1's two samples at x = 0: ((-4, 3) + (-3, -1))/2 = (-3.5, 1); y = -½ of it, twice with two steps: the
    mean gradient at (1.75, -0.5) is ((-0.5, 2.5) + (-1.25, -1.5))/2 = (-0.875, 0.5), y = (2.1875, -0.75)."""
    two = [[(2, 1, 2, -3), (1, 1, 3, 1)]]
    walk({"batch_size": "full"}, (1.75, -0.5), samples=two, start=(0, 0))
    walk({"batch_size": "full", "local_epochs": None, "local_steps": 2}, (2.1875, -0.75), samples=two, start=(0, 0))
    # Three samples, batches of two: the first step is `full_batch`'s, y = (1.75, -0.5); the third sample, g0, counts
    # whole: (4.75, -5), y = (1.75, -0.5) - ½ (4.75, -5).
    walk({"batch_size": 2}, (-0.625, 2), samples=[[*two[0], (1, 2, -3, 2)]], start=(0, 0))


@each(
    ({"batch_size": 4, "local_epochs": 2}, [4, 4, 2, 4, 4, 2]), ({"batch_size": 4, "local_steps": 4}, [4, 4, 2, 4]),
    ({"batch_size": 4, "local_steps": 1}, [4]), ({"batch_size": "full", "local_epochs": 3}, [10, 10, 10]),
    ({"batch_size": 64, "local_epochs": 1}, [10]),
)  # fmt: skip
def test_batches(options: dict[str, Any], sizes: list[int]) -> None:
    """Ten samples: every epoch is a permutation, cut in order; `steps` knows the number beforehand."""
    training = Training(**options)
    drawn = list(draw_batches(training, 10, seed=1, round=2, client=3))
    assert [len(batch) for batch in drawn] == sizes
    assert training.count_steps(10) == len(sizes)
    epoch = np.concatenate(drawn)[:10] if sum(sizes) >= 10 else np.concatenate(drawn)
    assert len(set(epoch)) == len(epoch)
    again = np.concatenate(list(draw_batches(training, 10, seed=1, round=2, client=3)))
    assert np.array_equal(np.concatenate(drawn), again)


@pytest.mark.parametrize("name", sorted(CASES))
def test_round(name: str) -> None:
    check(CASES[name]())


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_method_has_a_derivation(name: str) -> None:
    assert name in {case().algorithm["name"] for case in CASES.values()}


LAYOUT = Layout(("w", "b", "k"), ((3, 4), (4,), (2, 3, 2, 2)), heads=frozenset({"w"}))
STEPS, DECAY, LR = 6, 0.3, 0.05
ADAMW: dict[str, Any] = {"optimizer": "adamw", "momentum": 0, "lr": 0.01}


def gradients(seed: int = 0) -> list[Tensor]:
    """One float64 `(P,)` per step."""
    generators = (torch.Generator().manual_seed(seed + k) for k in range(STEPS))
    return [torch.randn(LAYOUT.size, dtype=torch.float64, generator=one) for one in generators]


def descend(descent: Descent, masks: list[Tensor | None] | None = None) -> Tensor:
    """y after all steps from ones."""
    y = torch.ones(LAYOUT.size, dtype=torch.float64)
    for g, mask in zip(gradients(), masks or [None] * STEPS, strict=True):
        y = descent.step(y, g, LR, mask)
    return y


def of_torch(make: Any, masks: list[Tensor | None] | None = None) -> Tensor:
    """The same with an optimiser of PyTorch over the three tensors; a tensor outside the mask has no gradient."""
    ones = LAYOUT.views(torch.ones(LAYOUT.size, dtype=torch.float64))
    tensors = {name: nn.Parameter(view.clone()) for name, view in ones.items()}
    optimisers = make(tensors)
    for g, mask in zip(gradients(), masks or [None] * STEPS, strict=True):
        views, moving = LAYOUT.views(g), LAYOUT.views(torch.ones(LAYOUT.size) if mask is None else mask)
        for name, tensor in tensors.items():
            tensor.grad = views[name].clone() if moving[name].any() else None
        for optimiser in optimisers:
            optimiser.step()
    return torch.cat([tensor.detach().flatten() for tensor in tensors.values()])


def adamw(beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> Descent:
    return Descent(Optimiser(weight_decay=DECAY, make_rule=lambda: AdamW(beta1, beta2, eps)))


def torchs(beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> Any:
    options: dict[str, Any] = {"lr": LR, "betas": (beta1, beta2), "eps": eps, "weight_decay": DECAY}
    return lambda tensors: [torch.optim.AdamW(tensors.values(), **options)]


def test_sgd_leaves_the_momentum_of_a_part_that_rests_alone() -> None:
    """Head and the other tensors in turn, as PyTorch leaves tensors without gradient."""
    head = LAYOUT.part("head").double()
    masks = [head, 1 - head, head, None, 1 - head, head]
    sgd = Descent(Optimiser(weight_decay=DECAY, make_rule=lambda: SGD(0.9)))
    expected = of_torch(lambda t: [torch.optim.SGD(t.values(), LR, 0.9, weight_decay=DECAY)], masks)
    assert torch.allclose(descend(sgd, masks), expected, rtol=1e-12)


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.9), (0.7, 0.0)])
def test_adamw_is_pytorchs(betas: tuple[float, float]) -> None:
    assert torch.allclose(descend(adamw(*betas)), of_torch(torchs(*betas)), rtol=1e-12)


def test_adamw_counts_the_steps_of_each_part() -> None:
    """The head in two steps, then the other tensors, then all: as PyTorch counts steps of tensors without gradient."""
    head = LAYOUT.part("head").double()
    masks = [head, head, 1 - head, 1 - head, None, head]
    assert torch.allclose(descend(adamw(), masks), of_torch(torchs(), masks), rtol=1e-12)
    assert not torch.allclose(descend(adamw(), masks), descend(adamw()), rtol=1e-3)


def test_adamw_by_hand() -> None:
    """Client 1 alone, x = (1, -1), β = (½, ½), ε = 0, wd = ½, η = ½, b = (-2, 3), a = 1.

    First g = (3, -4): m = g/2, v = g²/2, corrections ½ and ½: d = (1, -1) + ½ (1, -1), y = (0.25, -0.25).
    Then g = (2.25, -3.25): m = g_0/4 + g/2 = (1.875, -2.625), v = g_0²/4 + g²/2 = (4.78125, 9.28125), both over ¾:
    m/√v = (2.5/√6.375, -3.5/√12.375) = (0.9901475, -0.9949367), d = that + (0.125, -0.125)."""
    training = {"optimizer": "adamw", "adamw": {"betas": [0.5, 0.5], "eps": 0}, "weight_decay": 0.5}
    expected = (0.25 - (2.5 / 6.375**0.5 + 0.125) / 2, -0.25 + (3.5 / 12.375**0.5 + 0.125) / 2)
    walk(training, expected, samples=[[(1, 1, -2, 3), (1, 1, -2, 3)]])


def muon(**options: Any) -> Descent:
    return Descent(Optimiser(weight_decay=DECAY, make_rule=lambda: Muon(MuonOptions(**options), LAYOUT)))


@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_is_pytorchs(nesterov: bool) -> None:
    """PyTorch's turns matrices in bfloat16, which leaves 8 bits: 2 % of a step, 0.05 s. The kernel k is (2, 12) there,
    with its own factor s = 1, as for w, 3 by 4. The vector is AdamW's."""

    def make(tensors: dict[str, nn.Parameter]) -> list[Any]:
        options = {"lr": LR, "weight_decay": DECAY, "momentum": 0.95, "nesterov": nesterov}
        vector = torch.optim.AdamW([tensors["b"]], lr=LR, betas=(0.9, 0.95), eps=1e-10, weight_decay=DECAY)
        return [torch.optim.Muon([tensors["w"]], **options), vector]

    ours, theirs = LAYOUT.views(descend(muon(nesterov=nesterov))), LAYOUT.views(of_torch(make))
    assert torch.allclose(ours["w"], theirs["w"], rtol=0, atol=0.02 * LR * STEPS)
    assert torch.allclose(ours["b"], theirs["b"], rtol=1e-12)
    assert float((ours["w"] - LAYOUT.views(descend(muon(nesterov=not nesterov)))["w"]).abs().max()) > 0.02 * LR * STEPS


def test_which_matrices() -> None:
    """body: neither the head nor embeddings; the convolutions of a ResNet and its head are the rest."""
    network = Network(make_model_spec({"name": "resnet18"}).build((3, 32, 32), 10))
    chosen = {m: set(Muon(MuonOptions(matrices=m), network.layout).names) for m in ("all", "body")}
    assert (chosen["all"] - chosen["body"], len(chosen["body"])) == ({"fc.weight"}, 20)
    text = Network(make_model_spec("char_lstm").build((80,), 90))
    assert len(text.layout.embeddings) == 1
    assert not text.layout.embeddings & set(Muon(MuonOptions(matrices="body"), text.layout).names)


KEPT: dict[str, Any] = {**ADAMW, "adamw": {"state": "client"}, "lr_decay": 1.0}


def test_clients_keep_moments_which_go_on_where_they_were() -> None:
    """One client a round: its two rounds of one epoch are one round of two epochs, if nothing of AdamW starts anew."""
    options = {"clients": {"cohorts": [[1], [1]]}, "batch_size": "full", "clip_norm": None}
    for kept in (True, False):
        given = {**(KEPT if kept else ADAMW), "lr_decay": 1.0, **options}
        once = final("fedavg", **given, rounds=1, local_epochs=2).theta
        assert bool((once - final("fedavg", **given, rounds=2, local_epochs=1).theta).abs().max() < 1e-6) == kept
    # Clients 1 and 2 take part; 35 and 50 samples in batches of 16 are 3 and 4 steps an epoch, 2 epochs a round.
    clients = final("fedavg", **KEPT, rounds=2, clients={"cohorts": [[1, 2], [2]]}).clients
    assert {i: float(kept.optimizer_steps) for i, kept in clients.items()} == {1: 6, 2: 16}
    assert all(kept.keys() == {"optimizer_m", "optimizer_v", "optimizer_steps"} for kept in clients.values())
    assert not final("fedavg", **ADAMW, rounds=1).clients


def test_fine_tuning_starts_anew() -> None:
    """A client's kept moments are of its training: the personal models are the same with and without them."""
    results = []
    for state in ("client", "round"):
        running = small.simulation(
            training={"rounds": 1, "local_epochs": 1, "optimizer": "adamw", "lr": 0.01, "adamw": {"state": state}},
            evaluation={"every": 1, "personal": {"epochs": 2}},
        )
        results.append(small.outcome(running)[2][-1]["personal_accuracy"])
    assert results[0] == results[1]


BOUND = {
    "fednova", "scaffold", "feddc", "fedcm", "mofedsam", "mimelite", "fedgamma", "fedlesam-s", "fedtoga",
    "fedrod", "perfedavg", "pfedme", "fedmoswa", "fedwmsam",
}  # fmt: skip
"""Methods whose formulas divide by η, or count or contain steps of SGD."""
BOUND_BY_OPTIONS: list[dict[str, Any]] = [
    {"name": "apfl", "adaptive": True},
    {"name": "fedsol", "proximal": "scaffold"},
    {"name": "fedsol", "proximal": "fednova"},
]


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_who_is_bound_to_sgd(name: str) -> None:
    own = ALGORITHMS[name].local_optimizer is not Algorithm.local_optimizer
    assert bool(algorithm(name).bound_to_sgd) == (name in BOUND or own)


@pytest.mark.parametrize("options", [{"name": name} for name in sorted(BOUND)] + BOUND_BY_OPTIONS, ids=str)
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_formula_of_sgd_is_refused(options: dict[str, Any], optimizer: str) -> None:
    made = algorithm(options)
    with pytest.raises(UserError, match=f"{optimizer}; {made.name} {re.escape(made.bound_to_sgd)}, so it needs sgd"):
        small.config(options, (6, 3), training={"optimizer": optimizer})


def test_fedtoga_without_its_mean_step_is_not_bound() -> None:
    forms = {"name": "fedtoga@forms", "dual_correction": False, "sam_correction": False}
    small.config(forms, training={"optimizer": "adamw"})
