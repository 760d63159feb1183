"""The quantities of propositions and theorems, on quadratics whose two sides are known and on a network."""

from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

import fedray
from fedray.algorithms.fedsol import FedSOL
from fedray.common.errors import UserError
from fedray.common.vectors import Vectors
from fedray.engine.messages import Broadcast, ClientTask
from fedray.engine.process.backend import InlineBackend
from fedray.engine.process.worker import Worker
from fedray.engine.server.simulation import Simulation
from fedray.models.network import Layout, Output
from fedray.probes.landscape import Landscape
from fedray.probes.proximal import compare_sides, measure_propositions, measure_step
from fedray.probes.theorems import Margins, measure_spectral_complexity
from tests import small
from tests.algorithms import quadratic
from tests.probes.probed import digits, last_row, with_probes


@dataclass
class Bowl:
    """L(θ) = ½ Σ a (θ - b)², as a `Landscape`."""

    a: Tensor
    b: Tensor

    def compute_loss(self, theta: Tensor) -> float:
        return float((self.a * (theta - self.b).square()).sum() / 2)

    def compute_gradient(self, theta: Tensor) -> Tensor:
        return self.a * (theta - self.b)

    def multiply_hessian(self, theta: Tensor, v: Tensor) -> Tensor:
        return self.a * v


def sides(rho: float, lr: float) -> dict[str, float]:
    """Both sides at y = (1, 1, 1) of L = ½ (4 (θ1 - 2)² + θ2² + ½ (θ3 + 1)²); g_p = (3, 0, 4), so ĝ_p = (.6, 0, .8)."""
    a, b, g_p, d = np.array([[4, 1, 0.5], [2, 0, -1], [3, 0, 4], [0.6, 0, 0.8]])
    bowl, y = Bowl(torch.from_numpy(a), torch.from_numpy(b)), torch.ones(3, dtype=torch.float64)
    g_p, d = torch.from_numpy(g_p), torch.from_numpy(d)
    return compare_sides(cast(Landscape, bowl), y, g_p, bowl.compute_gradient(y + rho * d), d, rho, lr)


@pytest.mark.parametrize("rho", [0.0, 0.1, 0.5])
def test_propositions_on_a_quadratic(rho: float) -> None:
    """g_l = (-4, 1, 1), H = diag(4, 1, ½): ⟨g_l, g_p⟩ = -8, ĝ_p' H g_p = .6 · 4 · 3 + .8 · ½ · 4 = 8.8. A quadratic's
    g_u is g_l + ρ H ĝ_p exactly, so eq. 11's sides are equal: -γ (-8 + 8.8 ρ).

    Eq. 12: with h = H ĝ_p = (2.4, 0, .4) the left side is -γ ⟨g_l, g_u⟩ + ½ γ² g_u' H g_u, the right one the same of
    g' = g_l + ρ h/2 twice; they differ by γ ρ² |h|²/4 and what is of the order of γ².
    """
    lr = 1e-4
    found = sides(rho, lr)
    assert found["conflict"] == pytest.approx(-8)
    assert found["curvature"] == pytest.approx(8.8)
    assert found["proposition1_left"] == pytest.approx(-lr * (-8 + 8.8 * rho), rel=1e-9)
    assert found["proposition1_right"] == pytest.approx(found["proposition1_left"], rel=1e-9)
    assert found["proposition1_plain"] == pytest.approx(8 * lr)
    difference = found["proposition2_left"] - found["proposition2_right"]
    assert difference == pytest.approx(lr * rho**2 * (2.4**2 + 0.4**2) / 4, abs=50 * lr**2)


def test_what_eq_12_leaves_is_quadratic_in_rho() -> None:
    """Twice ρ leaves four times as much between its sides; with the plain step at y instead of y + ρ ĝ_p/2, twice."""
    small, large = sides(0.1, 1e-6), sides(0.2, 1e-6)
    for right, factor in (("proposition2_right", 4), ("proposition2_plain", 2)):
        left = [one["proposition2_left"] - one[right] for one in (small, large)]
        assert left[1] / left[0] == pytest.approx(factor, rel=0.05)


@pytest.mark.parametrize("radius", ["fixed", "adaptive"])
def test_propositions_of_a_network(radius: str) -> None:
    """Left sides and plain steps are the probe `step`'s; the curvature is that of a central difference."""
    options: dict[str, Any] = {"name": "fedsol", "rho": 0.05, "perturb": "all", "radius": radius}
    problem = digits(options, {"name": "mlp", "hidden": [8]}, rounds=1, local_epochs=4)
    worker, method = Worker(problem), cast(FedSOL, problem.config.algorithm)
    network = worker.network
    given = Broadcast(
        round=0, lr=0.1, theta=network.theta.clone(), buffers=network.buffers.clone(), message=Vectors(), cohort=1
    )
    c, _ = worker.trainer.train(given, ClientTask(0, 1.0, Vectors()))
    c.batch_size, c.per_epoch = c.samples, 1  # one batch
    found, step = measure_propositions(c, method), measure_step(c, method)
    assert found["proposition1_left"] == pytest.approx(step["proximal_change_linear"], rel=1e-4)
    assert found["proposition2_left"] == pytest.approx(step["local_change"], rel=1e-3)
    assert found["proposition2_plain"] == pytest.approx(step["local_change_plain"], rel=1e-3)
    near = measure_propositions(c, method.model_copy(update={"rho": 1e-3}))
    slope = (near["proposition1_left"] - near["proposition1_plain"]) / (-0.1 * 1e-3)  # ⟨g_u - g_l, g_p⟩/ρ
    assert found["curvature"] == pytest.approx(near["curvature"], rel=1e-3)
    assert found["curvature"] == pytest.approx(slope, rel=0.05)


def test_divergence_by_local_step_and_full_gradient_on_quadratics() -> None:
    """After a step of ½ the clients are at (-1.5, 2) and (2, -1.5), each √6.125 from their mean (¼, ¼); only client 1
    makes a second one, which has no mean to differ from.

    x becomes (½, 7/8). There ∇f_0 = (3.5, -2.25), ∇f_1, the mean of its samples', ((-3 - 2.5)/2, (3.875 - 0.125)/2);
    their mean is (0.375, -0.1875).
    """
    case = quadratic.Case({"name": "fedavg"}, [{"theta": (0.5, 0.875)}])
    built = with_probes(quadratic.problem(case), ["step_divergence", "gradient_norm"])
    row = last_row(built)
    assert row["divergence_step_1"] == pytest.approx(6.125)
    assert not row.keys() & {"divergence_step_2", "divergence_step_5"}
    assert row["gradient_norm"] == pytest.approx(np.hypot(0.375, 0.1875), rel=1e-5)


def test_divergence_by_other_means() -> None:
    """Every step of a cohort of three, from each client's own path."""
    steps = (1, 3, 4)
    problem = digits("fedsam", {"name": "mlp", "hidden": [8]}, [{"name": "step_divergence", "steps": steps}], rounds=1)
    row, running, worker = last_row(problem), Simulation(problem, InlineBackend()), Worker(problem)
    paths = {}
    for i in map(int, running.draw_cohort(0)):
        given = replace(running._make_broadcast(running._make_server(0, 3)), measured=True)
        paths[i] = worker.trainer.train(given, ClientTask(i, 1.0, Vectors()))[0].path
    for k in steps:
        there = torch.stack([path[k].double() for path in paths.values() if k in path])
        expected = float((there - there.mean(0)).square().sum(1).mean())
        assert row[f"divergence_step_{k}"] == pytest.approx(expected, rel=1e-5)
        assert expected > 0


@pytest.mark.parametrize(
    ("method", "probe", "message"),
    [
        (
            "fedavg",
            "propositions",
            r"propositions are FedSOL's \(fedsol with strategy A1 and proximal kl\); found fedavg",
        ),
        ({"name": "fedsol", "strategy": "A3"}, "propositions", "found fedsol-a3"),
        ({"name": "fedsol", "proximal": "fedprox"}, "propositions", "found fedsol"),
        ("fedavg", {"name": "step_divergence", "steps": [0, 3]}, r"step_divergence.steps: found \[0, 3\]"),
        ("local-only", "step_divergence", "local-only shares nothing"),
        ("fedrep", "gradient_norm", "fedrep has none"),
        ("fedrep", "margins", "fedrep has none"),
    ],
)
def test_what_has_no_such_quantity_is_refused(method: Any, probe: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        digits(method, {"name": "mlp", "hidden": [8]}, [probe])


def test_spectral_complexity_by_hand() -> None:
    """W_1 = diag(3, 1) has ‖W‖ = 3, ‖W‖_F² = 10; W_2, a kernel 1 x 1 x 1 x 2 of (0, 2), 2 and 4. A bias does not count.

    Q(F) = 9 · 4 (10/9 + 1) = 76. Scaling both matrices by c multiplies it by c^4.
    """
    layout = Layout(("a.weight", "a.bias", "b.weight"), ((2, 2), (2,), (1, 1, 1, 2)), frozenset({"b.weight"}))
    theta = torch.tensor([3.0, 0, 0, 1, 100, 100, 0, 2])
    assert 10 ** measure_spectral_complexity(theta, layout) == pytest.approx(76)
    assert 10 ** measure_spectral_complexity(10 * theta, layout) == pytest.approx(76e4)


def test_margin_risk_by_hand() -> None:
    """Margins of 2, 0.5, -1 and exactly 1: with γ = 1 three of four samples are at most that far from an error."""
    z = torch.tensor([[3.0, 1, 0], [0.5, 1, 0], [1, 0, 2], [0, 1, 2]])
    sums = Margins(gamma=1.0).test_sums(Output(z, z), torch.tensor([0, 1, 0, 2]), 3)
    assert sums.tolist() == [3, 4]
    assert Margins(gamma=0).test_sums(Output(z, z), torch.tensor([0, 1, 0, 2]), 3).tolist() == [1, 4]


def simulate(*probes: Any) -> dict[str, float]:
    """The last of two rounds of four clients on digits."""
    config = small.sections(clients=(4, 4), training={"rounds": 2, "local_epochs": 1})
    config |= {"partition": {"name": "dirichlet", "alpha": 0.3}}
    return dict(fedray.simulate(config | {"evaluation": {"every": 1, "probes": list(probes)}}).history[-1])


def test_margins_of_a_run() -> None:
    """The share with a margin of at most 0 is the share of errors; with a wide γ it is every sample."""
    row = simulate({"name": "margins", "gamma": 0})
    assert row["margin_risk"] == pytest.approx(100 - row["test_accuracy"], abs=1e-4)
    assert np.isfinite(row["spectral_complexity"])
    assert simulate({"name": "margins", "gamma": 1e6})["margin_risk"] == 100


def test_angles_of_one_client() -> None:
    """The mean over four clients is the mean of each alone; a client that takes no part has no angle."""
    name = "angle_classifier_existing"
    each = [simulate({"name": "angles", "client": i}) for i in range(4)]
    assert simulate("angles")[name] == pytest.approx(np.mean([row[name] for row in each]), rel=1e-6)
    assert len({row[name] for row in each}) == 4
    assert {row[f"{name}_std"] for row in each} == {0.0}
    assert len({row[f"global_{name}"] for row in each}) > 1
    none = simulate({"name": "angles", "client": 7})
    assert name not in none
    assert "global_angle_classifier" in none
