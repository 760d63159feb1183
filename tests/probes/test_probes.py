"""Measurements of `evaluation.probes` and `evaluation.train`, against numbers derived by hand or by other means; they
change nothing, cost only what the chosen probes need, and are refused if they have no meaning."""

import itertools
import math
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from fedray.algorithms import ALGORITHMS
from fedray.algorithms.base import Algorithm
from fedray.client import LocalClient
from fedray.common.errors import UserError
from fedray.engine.loop import run
from fedray.engine.problem import Problem
from fedray.engine.process import train
from fedray.engine.process.backend import InlineBackend
from fedray.engine.sampling import draw_cohort
from fedray.engine.server.simulation import Simulation
from fedray.probes.probe import Probe
from fedray.probes.probes import average_angle, measure_angles, measure_drift_between
from tests import small
from tests.algorithms import quadratic, rounds_personal
from tests.conftest import each
from tests.methods import METHODS
from tests.probes.probed import EVERY_PROBE, arrays, digits, last_row, measure_everything, percent_right, with_probes


def test_angles_between_known_vectors() -> None:
    """(1, 0), (0, 2), (-3, 0): 90, 180 and 90 degrees, for any lengths; a zero vector has no angle.

    (1, 0) and (1, 1e-6) are 1e-6 radians apart; an arccos would keep four digits of that."""
    angles = measure_angles(torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0], [0.0, 0.0]]))
    assert average_angle(angles, torch.ones(4, dtype=torch.bool)) == pytest.approx(120)
    assert average_angle(angles, torch.tensor([True, True, False, True])) == pytest.approx(90)
    assert average_angle(angles, torch.tensor([True, False, False, True])) is None
    near = measure_angles(torch.tensor([[1.0, 0.0], [1.0, 1e-6]], dtype=torch.float64))
    assert float(near[0, 1]) == pytest.approx(math.degrees(1e-6), rel=1e-9)


def test_adaptation_by_class_counts() -> None:
    """‖Φ W - W‖² = E_W Σ_c (C n_c/n - 1)², for every class vector has the squared length E_W = 4."""
    problem = digits({"name": "fedgela", "scale_w": 4.0}, {"name": "mlp", "hidden": [16]}, ["adaptation"])
    counts = problem.split.train.count_labels(problem.data.y_train, 10)
    phi = 10 * counts / counts.sum(1, keepdims=True)
    cohort = draw_cohort(problem.config, problem.split.train.sizes, problem.config.training.rounds - 1)
    expected = [math.sqrt(4 * ((phi[i] - 1) ** 2).sum()) for i in cohort]
    row = last_row(problem)
    assert row["adaptation"] == pytest.approx(np.mean(expected), rel=1e-5)
    assert row["adaptation_std"] == pytest.approx(np.std(expected), rel=1e-4)
    weighted = np.average(expected, weights=problem.split.train.sizes[cohort])
    assert row["adaptation_weighted"] == pytest.approx(weighted, rel=1e-5)
    assert weighted != pytest.approx(np.mean(expected), rel=1e-4)
    with pytest.raises(UserError, match=r"adaptation needs a classifier that clients scale .*fedavg has none"):
        digits("fedavg", {"name": "mlp", "hidden": [16]}, ["adaptation"])


def test_angles_of_clients_and_server() -> None:
    """The features are the inputs, and nothing moves (η = 1e-12). Client 0 holds classes 0, 1, 2, client 1 holds 2, 3.

    Class means of the test set: directions of 0°, 90°, 180°, and 45° for class 3, whose samples (5, 0) and (0, 3) count
    alike at length 1. Pairs: 01 90, 02 180, 03 45, 12 90, 13 45, 23 135; all: 585/6. Client 0: existing (90 + 180 +
    90)/3 = 120, missing: class 3 alone, no pair. Client 1: existing 135, missing (0 and 1) 90.
    Classifier rows of 0°, 90°, 180°, -45°: 01 90, 02 180, 03 45, 12 90, 13 135, 23 135; all: 675/6. Client 0: existing
    120; client 1: existing 135, missing 90. 1500 test samples are three chunks of the sums."""
    model = {"name": "tests.probes.probed:Rows", "rows": [[2, 0], [0, 3], [-1, 0], [1, -1]]}
    given = [[1, 0], [0, 1], [-1, 0], [-1, 0], [1, 1]], [0, 1, 2, 2, 3], [0, 0, 0, 1, 1]
    test = [[1, 0], [0, 1], [-1, 0], [5, 0], [0, 3]] * 300, [0, 1, 2, 3, 3] * 300
    row = last_row(arrays(model, *given, classes=4, lr=1e-12, test=test, probes=["angles"]))
    expected = {"global_angle_means": 97.5, "global_angle_classifier": 112.5}
    for name in ("angle_means", "angle_classifier"):
        expected |= {f"{name}_existing": 127.5, f"{name}_existing_std": 7.5, f"global_{name}_existing": 127.5}
        expected |= {f"{name}_missing": 90, f"{name}_missing_std": 0, f"global_{name}_missing": 90}
    assert {name: value for name, value in row.items() if "angle" in name} == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("server_lr", [1.0, 0.5])
@pytest.mark.parametrize("aggregation", ["uniform", "samples"])
def test_drift_and_divergence_on_quadratics(aggregation: str, server_lr: float) -> None:
    """Client 0: u = -½ (3, -4) = (-1.5, 2), of length 2.5. Client 1: -½ (-4, 3) = (2, -1.5), then -½ (2 - 3, -1.5 - 1),
    so u = (2.5, -0.25), of length √6.3125. Their distance is √(4² + 2.25²) = √21.0625, for any weights.

    π = (½, ½), or (1/3, 2/3) by 1 and 2 samples; d = η_g Σ π_i u_i."""
    case = quadratic.Case({"name": "fedavg"}, {}, training={"aggregation": aggregation, "server_lr": server_lr})
    row, lengths = last_row(with_probes(quadratic.problem(case), ["drift"])), (2.5, math.sqrt(6.3125))
    assert row["drift"] == pytest.approx(sum(lengths) / 2)
    assert row["drift_std"] == pytest.approx((lengths[1] - lengths[0]) / 2, rel=1e-4)
    assert row["drift_between"] == pytest.approx(math.sqrt(21.0625))
    u, pi = [np.array([-1.5, 2]), np.array([2.5, -0.25])], (0.5, 0.5) if aggregation == "uniform" else (1 / 3, 2 / 3)
    d = server_lr * sum(p * v for p, v in zip(pi, u, strict=True))
    assert row["divergence"] == pytest.approx(sum(p * ((v - d) ** 2).sum() for p, v in zip(pi, u, strict=True)))


def test_drift_is_of_what_is_shared() -> None:
    """FedBN's round in `rounds_personal`: H moves by ±1/6 and ∓1/12, of length √2/6 and √2/12, their mean by ±1/24;
    γ and β move too, and stay with the clients. Between them 1/4 twice; from the new H both are 1/8 away, twice."""
    row = last_row(with_probes(quadratic.problem(rounds_personal.fedbn()), ["drift"]))
    assert row["drift"] == pytest.approx(math.sqrt(2) / 8)
    assert row["drift_std"] == pytest.approx(math.sqrt(2) / 24, rel=1e-5)
    assert (row["drift_between"], row["divergence"]) == (pytest.approx(math.sqrt(2) / 4), pytest.approx(1 / 32))


def test_drift_between_is_that_over_all_pairs_whoever_answers_first() -> None:
    """√(Σ_{i≠j} π_i π_j ||u_i - u_j||² / Σ_{i≠j} π_i π_j); nothing for a cohort of one."""
    u = torch.randn(5, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pi = dict(enumerate((0.1, 0.15, 0.2, 0.25, 0.3)))
    pairs = [(i, j) for i in pi for j in pi if i != j]
    total = sum(pi[i] * pi[j] for i, j in pairs)
    expected = math.sqrt(sum(pi[i] * pi[j] * float((u[i] - u[j]).square().sum()) for i, j in pairs) / total)
    lengths = {i: float(u[i].norm()) for i in pi}
    found = measure_drift_between(lengths, pi, sum(pi[i] * u[i] for i in pi))  # type: ignore[arg-type]
    assert found["drift_between"] == pytest.approx(expected)
    assert measure_drift_between({3: 1.0}, {3: 1.0}, u[0]) == {}
    assert measure_drift_between({0: 1.0, 3: 1.0}, {0: 0.0, 3: 1.0}, u[0]) == {}, "one client has all the weight"
    assert "drift_between" not in last_row(digits("fedavg", probes=["drift"], per_round=1))
    # Near 10^16/3 doubles are 0.5 apart: 0.2 and again 0.2 are lost where they come last, their sum 0.4 is not.
    weights, lengths = dict.fromkeys(range(3), 1 / 3), {0: 0.6**0.5, 1: 1e8, 2: 0.6**0.5}
    update = torch.tensor([0.99e8 / 3**0.5], dtype=torch.float64)
    values = {
        measure_drift_between({i: lengths[i] for i in order}, weights, update)["drift_between"]
        for order in itertools.permutations(range(3))
    }
    assert len(values) == 1


def test_accuracy_of_local_models_on_the_training_set_and_by_class() -> None:
    """Of a cohort of one, which is the global model's."""
    row = last_row(digits("fedavg", probes=["forgetting"], rounds=1, per_round=1))
    assert row["local_test_accuracy"] == row["test_accuracy"]
    several = last_row(digits("fedavg", probes=["forgetting"], rounds=1))
    assert several["local_test_accuracy"] != several["test_accuracy"]
    assert several["local_test_accuracy_std"] > 0
    # `evaluation.train` is the global model's accuracy on every training sample, with its running statistics.
    problem = digits("fedavg", train=True, probes=["classes"])
    result = run(problem, InlineBackend())
    row = result.history[-1]
    assert row["train_accuracy"] == pytest.approx(percent_right(problem, result.theta, result.state.buffers, "train"))
    assert row["train_accuracy"] != row["test_accuracy"]
    counts = np.bincount(problem.data.y_test, minlength=10)
    right = sum(row[f"accuracy_class_{k}"] * counts[k] for k in range(10)) / counts.sum()
    assert row["deviation_of_classes"] == pytest.approx(np.std([row[f"accuracy_class_{k}"] for k in range(10)]))
    assert right == pytest.approx(row["test_accuracy"])


def test_radii_by_hand() -> None:
    """One step, before which nothing is perturbed: u = (-1.5, 2) and (2, -1.5), |u|/2.5 = (0.6, 0.8): mean 0.7.

    Along the first dimension (of size 1) every entry is normalised by itself: 1."""
    for norm, mean in (("layer", 0.7), ("dim0", 1.0)):
        method, training = {"name": "fedsol@forms", "lambda_norm": norm}, {"local_epochs": None, "local_steps": 1}
        row = last_row(with_probes(quadratic.problem(quadratic.Case(method, {}, training=training)), ["lambda"]))
        assert (row["lambda_point"], row["lambda_point_std"]) == (pytest.approx(mean), pytest.approx(0, abs=1e-7))


def test_proximal_by_hand() -> None:
    """One sample x = 1 of class 0, logits W x with W = (0, 0), η = 2: two steps, of -2 (-½, ½) to (1, -1) and of
    -2 (-s, s) with s = 1/(1 + e²) to (m, -m), m = 1 + 2s.

    The received model says ½, ½; the local logits over τ = 3 are ±m/3: KL = log cosh(m/3). At the first
    step L_p has no gradient. At the second that of the cross-entropy is along (-1, 1), that of KL along (1, -1):
    cosine -1. One step with η = 2e-3: y = (1, -1)/1000, KL = log cosh(1/3000) = 5.6e-8, less than float32's 1e-7."""

    def measured(lr: float, steps: int) -> dict[str, float]:
        model = {"name": "tests.probes.probed:Rows", "rows": [[0], [0]]}
        return last_row(arrays(model, [[1]], [0], [0], lr=lr, local_steps=steps, probes=["proximal"]))

    row = measured(2, 2)
    assert row["proximal_loss"] == pytest.approx(math.log(math.cosh((1 + 2 / (1 + math.exp(2))) / 3)), rel=1e-5)
    assert (row["proximal_cosine"], row["proximal_cosine_size"]) == (pytest.approx(-1), pytest.approx(1))
    assert measured(2e-3, 1)["proximal_loss"] == pytest.approx(math.log(math.cosh(1 / 3000)), rel=1e-4)
    nothing = measured(1e-12, 1)
    assert nothing["proximal_loss"] == pytest.approx(0, abs=1e-12)
    assert "proximal_cosine" not in nothing


@pytest.mark.parametrize("method", ["fedavg", "scaffold", {"name": "fedprox", "mu": 1.0}])
def test_step_by_hand(method: Any) -> None:
    """As `test_proximal_by_hand`: y = (1, -1), and with s = 1/(1 + e²) the plain gradient there is (-s, s).

    A model (m, -m) has L_p = log cosh(m/3) and L = log(1 + e^-2m). A plain step of η = 2 makes m = 1 + 2s. FedProx with
    μ = 1 descends (-s, s) + (1, -1), which makes m = 2s - 1. ∇L_p = (t, -t)/6 with t = tanh(1/3). SCAFFOLD's variates
    are 0 until `upload`."""
    model = {"name": "tests.probes.probed:Rows", "rows": [[0], [0]]}
    row = last_row(arrays(model, [[1]], [0], [0], method, lr=2, probes=["step"]))
    s = 1 / (1 + math.exp(2))
    q = -s if isinstance(method, str) else 1 - s

    def change(of: Callable[[float], float], slope: float) -> float:
        return of(1 - 2 * slope) - of(1)

    def local(m: float) -> float:
        return math.log1p(math.exp(-2 * m))

    def proximal_loss(m: float) -> float:
        return math.log(math.cosh(m / 3))

    assert row["proximal_change"] == pytest.approx(change(proximal_loss, q), rel=1e-4)
    assert row["proximal_change_plain"] == pytest.approx(change(proximal_loss, -s), rel=1e-4)
    assert row["local_change"] == pytest.approx(change(local, q), rel=1e-4)
    assert row["local_change_plain"] == pytest.approx(change(local, -s), rel=1e-4)
    assert row["proximal_change_linear"] == pytest.approx(-2 * 2 * q * math.tanh(1 / 3) / 6, rel=1e-4)


def test_a_step_is_along_the_direction_before_upload() -> None:
    """In round 1 both references of MOON are the received model, whose contrast is 0; `upload` then gives the previous
    one other running statistics.
    """
    model = {"name": "mlp", "hidden": [12], "feature_norm": "batch"}
    row = last_row(digits({"name": "moon", "mu": 5.0}, model, ["step"], rounds=1))
    assert row["proximal_change"] == row["proximal_change_plain"]


class Looks(Probe):
    """Asks a method for its direction at each step, as `proximal` does."""

    name = "looks"
    metrics = {"size": "size", "head": "size in the head of what is descended"}

    def of_step(self, c: LocalClient, algorithm: Algorithm, q: torch.Tensor) -> dict[str, float]:
        return {"size": float(algorithm.direction(c).norm()), "head": float((q * c.layout.part("head")).norm())}


def test_a_direction_is_seen_where_the_step_moves() -> None:
    """FedBABU's head rests."""
    of = {name: last_row(digits(name, 8, [f"{__name__}:Looks"])) for name in ("fedavg", "fedbabu")}
    assert of["fedavg"]["head"] > 0 == of["fedbabu"]["head"] < of["fedbabu"]["size"]


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "muon"])
def test_the_optimiser_of_a_second_model_is_copied(optimizer: str) -> None:
    plain = outcome(digits("ditto", optimizer=optimizer, momentum=0.0))
    assert outcome(digits("ditto", probes=[f"{__name__}:Looks"], optimizer=optimizer, momentum=0.0))[:2] == plain[:2]


def test_no_other_batches_than_in_training() -> None:
    """Two samples and one, and a single step on the two: BatchNorm would refuse the batch of one."""
    model = {"name": "tests.models.test_network:TinyBatchNorm"}
    row = last_row(arrays(model, [[0], [2], [6]], [0, 1, 0], [0, 0, 0], batch_size=2, probes=["step"]))
    assert math.isfinite(row["proximal_change"])


def outcome(problem: Problem) -> tuple[str, str, list[dict[str, float]]]:
    return small.outcome(Simulation(problem, InlineBackend()))


@pytest.mark.parametrize("method", METHODS)
def test_probes_change_nothing(method: str) -> None:
    """Not the parameters, the clients' states, the running statistics, the other metrics, or torch's generator."""
    kind = ALGORITHMS[method]
    refused = {"lambda": method != "fedsol", "classes": kind.keeps != "none"}
    refused |= dict.fromkeys(("drift", "proximal", "step"), kind.shares == "none")
    probes = [probe for probe in EVERY_PROBE if not refused.get(probe)]
    model: Any = {"name": "mlp", "hidden": [12]} if kind.reads_taps else "tests.probes.probed:Careful"
    without, before = outcome(digits(method, model)), torch.get_rng_state()
    theta, state, history = outcome(digits(method, model, probes, train=kind.keeps == "none"))
    assert torch.equal(torch.get_rng_state(), before)
    assert (theta, state) == without[:2]
    for row, plain in zip(history, without[2], strict=True):
        assert len(row) >= len(plain) + 8
        assert {name: row[name] for name in plain} == plain


def test_a_probe_does_not_depend_on_the_others() -> None:
    """They do not depend on torch's generator either: dropout in the gradients is drawn by key."""
    plain, together = measure_everything()
    for seed, probe in enumerate(EVERY_PROBE):
        torch.manual_seed(seed)
        alone = last_row(digits("fedsol", probes=[probe]))
        assert len(alone) > len(plain)
        assert alone == {name: together[name] for name in alone}


def test_probes_cost_only_what_is_asked_and_only_in_evaluated_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    probing = Mock(wraps=train.probe_client)
    monkeypatch.setattr(train, "probe_client", probing)
    result = run(digits("fedavg", probes=["drift"], every=2, rounds=5), InlineBackend())
    rounds = [call.args[1]._round + 1 for call in probing.call_args_list]
    assert (rounds, [row["round"] for row in result.history]) == ([2, 2, 2, 4, 4, 4, 5, 5, 5], [2, 4, 5])
    assert all("drift" in row for row in result.history)


@each(
    ("fedavg", {"probes": ["lambda"]}, "adaptive); fedavg has no such radius"),
    ({"name": "fedsol", "radius": "fixed"}, {"probes": ["lambda"]}, "adaptive); fedsol has no such radius"),
    ("fedrep", {"probes": ["classes"]}, "evaluation.probes: classes tests the global model; fedrep has none"),
    ("local-only", {"auc": True}, "evaluation.auc: tests the global model; local-only has none"),
    ("fedrep", {"train": True}, "evaluation.train: tests the global model; fedrep has none"),
    ("fedproto", {"probes": ["drift"]}, "probes: drift compares with the global model; fedproto has none"),
)
def test_what_cannot_be_measured_is_refused(algorithm: Any, evaluation: dict[str, Any], message: str) -> None:
    with small.refused(message):
        small.config(algorithm, evaluation=evaluation)


@pytest.mark.parametrize("probe", ["drift", "proximal", "step"])
def test_clients_that_start_elsewhere_are_not_compared_with_the_global_model(probe: str) -> None:
    """Their u_i are from x + β (x - y), and `divergence` was twice what it is."""
    with small.refused(f"training.relaxed_start: {probe} compares with the x at which no client starts"):
        digits("fedavg", probes=[probe], relaxed_start=0.1)


def test_angles_without_a_linear_head_are_refused() -> None:
    """Before anything starts: the quadratic's head has one row for two classes."""
    with pytest.raises(UserError, match=r"evaluation\.probes: angles need a head whose weight has a row for each of 2"):
        Simulation(with_probes(quadratic.problem(quadratic.Case({"name": "fedavg"}, {})), ["angles"]), InlineBackend())
    with small.refused("a row for each of 10 classes; the model's has none that is trained"):
        last_row(digits("fedavg", {"name": "mlp", "hidden": [8], "freeze": ["head"]}, ["angles"]))
