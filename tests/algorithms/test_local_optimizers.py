"""AdamW and Muon as local optimisers: against PyTorch's, by hand, in reductions; refusals; what clients keep."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedray.algorithms import ALGORITHMS, algorithm
from fedray.algorithms.base import Algorithm
from fedray.algorithms.descent import Descent, Optimiser
from fedray.algorithms.local_optimizers import AdamW, Muon, MuonOptions
from fedray.common.errors import UserError
from fedray.models import make_model_spec
from fedray.models.network import Layout, Network
from tests import small
from tests.algorithms.digits import final
from tests.algorithms.quadratic import Case, check

LAYOUT = Layout(("w", "b", "k"), ((3, 4), (4,), (2, 3, 2, 2)), heads=frozenset({"w"}))
STEPS, DECAY, LR = 6, 0.3, 0.05
ADAMW: dict[str, Any] = {"optimizer": "adamw", "momentum": 0, "lr": 0.01}


def gradients(seed: int = 0) -> list[Tensor]:
    """One float64 `(P,)` per step."""
    return [
        torch.randn(LAYOUT.size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + k))
        for k in range(STEPS)
    ]


def walk(descent: Descent, masks: list[Tensor | None] | None = None) -> Tensor:
    """y after all steps from ones."""
    y = torch.ones(LAYOUT.size, dtype=torch.float64)
    for g, mask in zip(gradients(), masks or [None] * STEPS, strict=True):
        y = descent.step(y, g, LR, mask)
    return y


def of_torch(make: Any, masks: list[Tensor | None] | None = None) -> Tensor:
    """The same with an optimiser of PyTorch over the three tensors; a tensor outside the mask has no gradient."""
    tensors = {
        n: nn.Parameter(v.clone()) for n, v in LAYOUT.views(torch.ones(LAYOUT.size, dtype=torch.float64)).items()
    }
    optimisers = make(tensors)
    for g, mask in zip(gradients(), masks or [None] * STEPS, strict=True):
        views, moving = LAYOUT.views(g), LAYOUT.views(torch.ones(LAYOUT.size) if mask is None else mask)
        for name, tensor in tensors.items():
            tensor.grad = views[name].clone() if moving[name].any() else None
        for optimiser in optimisers:
            optimiser.step()
    return LAYOUT.join({name: tensor.detach() for name, tensor in tensors.items()})


def adamw(beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> Descent:
    return Descent(Optimiser(weight_decay=DECAY, make_rule=lambda: AdamW(beta1, beta2, eps)))


def torchs(beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> Any:
    return lambda tensors: [
        torch.optim.AdamW(tensors.values(), lr=LR, betas=(beta1, beta2), eps=eps, weight_decay=DECAY)
    ]


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.9), (0.7, 0.0)])
def test_adamw_is_pytorchs(betas: tuple[float, float]) -> None:
    assert torch.allclose(walk(adamw(*betas)), of_torch(torchs(*betas)), rtol=1e-12)


def test_adamw_counts_the_steps_of_each_part() -> None:
    """The head in two steps, then the other tensors, then all: as PyTorch counts steps of tensors without gradient."""
    head = LAYOUT.part("head").double()
    masks = [head, head, 1 - head, 1 - head, None, head]
    assert torch.allclose(walk(adamw(), masks), of_torch(torchs(), masks), rtol=1e-12)
    assert not torch.allclose(walk(adamw(), masks), walk(adamw()), rtol=1e-3)


def test_adamw_by_hand() -> None:
    """Client 1 alone, x = (1, -1), β = (½, ½), ε = 0, wd = ½, η = ½, b = (-2, 3), a = 1.

    First g = (3, -4): m = g/2, v = g²/2, corrections ½ and ½: d = (1, -1) + ½ (1, -1), y = (0.25, -0.25).
    Then g = (2.25, -3.25): m = g_0/4 + g/2 = (1.875, -2.625), v = g_0²/4 + g²/2 = (4.78125, 9.28125), both over ¾:
    m/√v = (2.5/√6.375, -3.5/√12.375) = (0.9901475, -0.9949367), d = that + (0.125, -0.125).
    """
    check(
        Case(
            {"name": "fedavg"},
            [{"theta": (0.25 - (2.5 / 6.375**0.5 + 0.125) / 2, -0.25 + (3.5 / 12.375**0.5 + 0.125) / 2)}],
            samples=[[(1, 1, -2, 3), (1, 1, -2, 3)]],
            start=(1, -1),
            training={"optimizer": "adamw", "adamw": {"betas": [0.5, 0.5], "eps": 0}, "weight_decay": 0.5},
        )
    )


def muon(**options: Any) -> Descent:
    return Descent(Optimiser(weight_decay=DECAY, make_rule=lambda: Muon(MuonOptions(**options), LAYOUT)))


@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_is_pytorchs(nesterov: bool) -> None:
    """PyTorch's turns matrices in bfloat16, which leaves 8 bits: 2 % of a step, 0.05 s. The kernel k is (2, 12) there,
    with its own factor s = 1, as for w, 3 by 4. The vector is AdamW's.
    """

    def make(tensors: dict[str, nn.Parameter]) -> list[Any]:
        flat = {"w": tensors["w"]}
        options = {"lr": LR, "weight_decay": DECAY, "momentum": 0.95, "nesterov": nesterov}
        vector = torch.optim.AdamW([tensors["b"]], lr=LR, betas=(0.9, 0.95), eps=1e-10, weight_decay=DECAY)
        return [torch.optim.Muon(flat.values(), **options), vector]

    ours, theirs = LAYOUT.views(walk(muon(nesterov=nesterov))), LAYOUT.views(of_torch(make))
    assert torch.allclose(ours["w"], theirs["w"], rtol=0, atol=0.02 * LR * STEPS)
    assert torch.allclose(ours["b"], theirs["b"], rtol=1e-12)
    assert float((ours["w"] - LAYOUT.views(walk(muon(nesterov=not nesterov)))["w"]).abs().max()) > 0.02 * LR * STEPS


def test_which_matrices() -> None:
    """body: neither the head nor embeddings; the convolutions of a ResNet and its head are the rest."""
    network = Network(make_model_spec({"name": "resnet18"}).build((3, 32, 32), 10))
    chosen = {m: set(Muon(MuonOptions(matrices=m), network.layout).names) for m in ("all", "body")}
    assert chosen["all"] - chosen["body"] == {"fc.weight"}
    assert len(chosen["body"]) == 20
    text = Network(make_model_spec("char_lstm").build((80,), 90))
    assert len(text.layout.embeddings) == 1
    assert not text.layout.embeddings & set(Muon(MuonOptions(matrices="body"), text.layout).names)


KEPT: dict[str, Any] = {**ADAMW, "adamw": {"state": "client"}, "lr_decay": 1.0}


def test_kept_moments_go_on_where_they_were() -> None:
    """One client a round: its two rounds of one epoch are one round of two epochs, if nothing of AdamW starts anew."""
    options = {"clients": {"cohorts": [[1], [1]]}, "batch_size": "full", "clip_norm": None}
    for kept in (True, False):
        given = {**(KEPT if kept else ADAMW), "lr_decay": 1.0, **options}
        once = final("fedavg", **given, rounds=1, local_epochs=2).theta
        twice = final("fedavg", **given, rounds=2, local_epochs=1).theta
        assert bool((once - twice).abs().max() < 1e-6) == kept


def test_clients_keep_moments_and_nothing_else() -> None:
    """Clients 1 and 2 take part; 35 and 50 samples in batches of 16 are 3 and 4 steps an epoch, 2 epochs a round."""
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
    kind = ALGORITHMS[name]
    own = kind.local_optimizer is not Algorithm.local_optimizer
    assert bool(algorithm(name).bound_to_sgd) == (name in BOUND or own)


@pytest.mark.parametrize("options", [{"name": name} for name in sorted(BOUND)] + BOUND_BY_OPTIONS, ids=str)
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_formula_of_sgd_is_refused(options: dict[str, Any], optimizer: str) -> None:
    method = algorithm(options)
    with pytest.raises(
        UserError, match=f"{optimizer}; {method.name} {re.escape(method.bound_to_sgd)}, so it needs sgd"
    ):
        small.config(options, (6, 3), training={"optimizer": optimizer})


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"optimizer": "adamw", "momentum": 0.9}, r"momentum: found 0\.9; adamw has training\.adamw\.betas instead"),
        ({"optimizer": "muon", "momentum": 0.9}, r"momentum: found 0\.9; muon has training\.muon\.momentum instead"),
        (
            {"optimizer": "adamw", "clip_scope": "code"},
            r"clip_scope: found code, which is sgd's; training\.optimizer is",
        ),
        ({"adamw": {"eps": 0.1}}, r"adamw: has options, but training\.optimizer is sgd"),
        ({"optimizer": "adamw", "muon": {"steps": 3}}, r"muon: has options, but training\.optimizer is adamw"),
        ({"optimizer": "adamw", "adamw": {"betas": [0.9, 1.0]}}, r"adamw\.betas\.1: found 1\.0; .*less than 1"),
    ],
)
def test_what_is_refused(training: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=rf"^training\.{message}"):
        small.config(training=training)


def test_fedtoga_without_its_mean_step_is_not_bound() -> None:
    forms = {"name": "fedtoga@forms", "dual_correction": False, "sam_correction": False}
    small.config(forms, training={"optimizer": "adamw"})
