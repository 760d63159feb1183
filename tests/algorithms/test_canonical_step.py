"""The local optimiser around a direction: clip, weight decay, momentum, learning rate; batches; and a round of each
method, derived by hand in the docstring of its case in `rounds_*` (`quadratic.py` has the clients and the notation).
"""

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedray.algorithms import ALGORITHMS
from fedray.config import Training
from fedray.engine.training.batches import draw_batches
from tests.algorithms.quadratic import CASES, Case, Point, check

for module in Path(__file__).parent.glob("rounds_*.py"):
    import_module(f"tests.algorithms.{module.stem}")  # registers its cases

ONE = [[(1, 1, -2, 3), (1, 1, -3, -3.75)]]
"""One client whose gradients are (3, -4) at x = (1, -1) and (3, 4) at (0, 0.25)."""


def walk(
    training: dict[str, Any], *rounds: Point, method: Any = None, samples: Any = (ONE[0][:1],), **more: Any
) -> None:
    """Check theta after each round from x = (1, -1); by default of FedAvg with the first sample."""
    expected: list[dict[str, Any]] = [{"theta": theta} for theta in rounds]
    check(Case(method or {"name": "fedavg"}, expected, samples=list(samples), start=(1, -1), training=training, **more))


def test_clip_then_weight_decay_then_momentum_then_lr() -> None:
    """C = 2.5, wd = m = η = ½, x = (1, -1). Step 0: (3, -4) clips to (1.5, -2); + ½ x = (2, -2.5) = v; y = (0, 0.25).

    Step 1: (3, 4) clips to (1.5, 2); + ½ y = (1.5, 2.125); v = ½ (2, -2.5) + that = (2.5, 0.875); y = (-1.25, -0.1875).
    """
    walk({"clip_norm": 2.5, "weight_decay": 0.5, "momentum": 0.5}, (-1.25, -0.1875), samples=ONE)


def test_a_direction_within_the_clip_norm_is_left_alone() -> None:
    """C = 5.5 > ||(3, -4)||: y = (1, -1) - ½ (3, -4)."""
    walk({"clip_norm": 5.5}, (-0.5, 1))


def test_learning_rate_decays_per_round_and_momentum_restarts() -> None:
    """η = ½, ¼, one step a round with g = y - b, b = (-2, 3), m = ½: y = (1, -1) - ½ (3, -4) = (-0.5, 1);
    with no velocity left over, y = (-0.5, 1) - ¼ (1.5, -2) = (-0.875, 1.5).
    """
    walk({"lr_decay": 0.5, "momentum": 0.5}, (-0.5, 1), (-0.875, 1.5))


def test_sam_ascends_the_bare_gradient() -> None:
    """ρ = 5, C = 5, wd = ½, x = (1, -1): e = (3, -4), without weight decay; g~ = (6, -8) clips to (3, -4);
    weight decay at x, not at x + e: q = (3.5, -4.5), y = (-0.75, 1.25).
    """
    walk({"clip_norm": 5.0, "weight_decay": 0.5}, (-0.75, 1.25), method={"name": "fedsam", "rho": 5.0})


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
        walk(
            {"clip_norm": 1.5, "clip_scope": scope, "weight_decay": 0.5},
            expected,
            method={"name": name, **options},
            server={"h": (1, 3)},
            clients={0: {"h": (1, 3), **kept}},
        )


def test_clip_scope_of_fedprox() -> None:
    """μ = 1, C = 2.5, η = ½, x = (1, -1), K = 2, b = (-2, 3). First step: q = (3, -4), less μx is (2, -3), norm √13:
    (2.5/√13) (2, -3) + (1, -1) = (2.3867505, -3.0801257), y = (-0.1933752, 0.5400629).
    Then q = y - b + (y - x) = (0.6132496, -0.9198742), less μy = (0.8066248, -1.4599371), norm 1.668 < C: q it is;
    y = (-0.5, 1).
    """
    training = {"clip_norm": 2.5, "clip_scope": "code", "local_epochs": 2}
    walk(training, (-0.5, 1.0), method={"name": "fedprox", "mu": 1.0})


def test_server_lr_scales_only_the_averaged_update() -> None:
    """FedDyn's first round has U = h = (0.25, 1.0625) (`rounds_corrections.feddyn`): x = ½ U + h."""
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
