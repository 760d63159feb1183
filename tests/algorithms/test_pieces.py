"""The pieces of methods: distillation, contrast over taps, the projection; FedExP's step and FedDisco's weights, as
methods and as settings of others; and edges that no oracle reaches, where a method is another one bit for bit: a radius
of 0, no epochs, a bound never met. Runs are on real digits, with weight decay, clipping, momentum, learning-rate decay,
unequal clients and partial participation on."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedray.algorithms.auxiliary import FedRCL, kl
from fedray.algorithms.base import Algorithm, Cohort, Output, Vectors
from fedray.algorithms.feature_terms import correlation, crowding, missing_variance
from fedray.algorithms.feddisco import FedDisco
from fedray.common.errors import UserError
from fedray.engine.loop import run
from fedray.engine.process.backend import InlineBackend
from fedray.engine.state import digest_theta
from fedray.models.network import Layout
from fedray.papers.variants import FedSOLForms
from tests import small
from tests.algorithms.digits import final, problem
from tests.conftest import each


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_there_is_no_gradient_at_all_of_equal_logits_and_without_spread() -> None:
    """Exactly 0: a unit vector of rounding noise would be a perturbation of full length (D-34)."""
    target = 10 * random(50, 10)
    logits = target.clone().requires_grad_()
    assert not torch.autograd.grad(kl(target, logits), logits)[0].any()
    # All samples equal: neither a standard deviation nor a median has a derivative there; both give 0, not NaN.
    for term in (missing_variance, crowding, correlation):
        features = torch.full((4, 3), 1 / 3, requires_grad=True)
        (gradient,) = torch.autograd.grad(term(features), features)
        assert torch.equal(gradient, torch.zeros_like(gradient)), term.__name__


def rcl(tap: Tensor, y: list[int], **options: float) -> float:
    """FedRCL's term for one tap."""
    return float(FedRCL.parse("algorithm", options).term(Output(tap, tap, (tap,)), torch.tensor(y)))


def test_fedrcl_of_samples_without_mates() -> None:
    """All classes distinct: no penalty, and orthogonal features leave log(1 + 2 e^-20) of the contrast."""
    assert rcl(torch.eye(4), [0, 1, 2, 3], contrast=0) < 1e-12
    assert rcl(torch.eye(4), [0, 1, 2, 3]) < 1e-7
    assert rcl(torch.eye(4)[:1], [0]) < 1e-7


LAYOUT = Layout(("a.weight", "a.bias", "h.weight"), ((2, 3), (2,), (2, 2)), frozenset({"h.weight"}))


def test_fedsol_does_not_follow_noise() -> None:
    """D-34: a gradient below 1e-8 counts as 0."""
    method = FedSOLForms.parse("algorithm", {"perturb": "all", "radius": "fixed"})
    local = Vectors(perturbed=LAYOUT.part("all"))
    c: Any = SimpleNamespace(theta=random(12), theta_0=random(12, seed=1), layout=LAYOUT, local=local)
    assert torch.equal(method.perturbed(c, 1e-10 * random(12, seed=2)), c.theta)


def parse(text: str) -> str | dict[str, Any]:
    """`name option=value ...` as an algorithm section."""
    name, *options = text.split()
    values = (option.replace(":", ": ").partition("=") for option in options)
    return {"name": name, **{key: yaml.safe_load(value) for key, _, value in values}} if options else name


@each(
    ("fedgloss rho=0 alpha=0.3 rho_l=0", "feddyn alpha=0.3"),
    ("fedwmsam rho=0 adaptive=false variates=false alpha=0.3", "fedcm alpha=0.3"),
    ("fedgen hidden=12 noise=4 steps=3 epochs=0", "fedavg"),
    ("feddisco a=0 b=0", "fedavg"),
    ("fedrep body_epochs=2", "fedbabu"),
    ("fedala threshold=1.0e-9 start_epochs=11", "fedala start_epochs=11"),  # never settles
    ("fedala threshold=1.0e+9 start_epochs=30", "fedala start_epochs=11"),  # at the first chance
)
def test_reduction(left: str, right: str) -> None:
    assert torch.equal(final(parse(left)).theta, final(parse(right)).theta)


def test_fedsmoo_corrected_after_one_first_step() -> None:
    """μ_i = e after one step from μ = s = 0, so μ_i - e = 0: s is 0, not 0/0 (D-16)."""
    options = {"batch_size": "full", "local_epochs": 1, "rounds": 1}
    assert not final({"name": "fedsmoo", "perturbation_dual": "corrected"}, **options).server["s"].any()


APART: dict[str, Any] = {"sizes": (2,) * 6, "per_round": 6}
"""Clients of two digits each, whose updates hardly overlap, so that the step grows."""


@pytest.mark.parametrize("base", ["fedavg", "scaffold", "feddyn", "fedavgm", "fedsam", "fedbabu", "ditto"])
@pytest.mark.parametrize(
    "setting",
    [{"server_step": "fedexp", "fedexp": {"epsilon": 1e-4}}, {"aggregation": "feddisco", "feddisco": {"a": 0.3}}],
)
def test_they_combine_with_methods_that_average(base: str, setting: dict[str, Any]) -> None:
    """They change the numbers; and for FedAvg the setting is the method."""
    options = APART if "server_step" in setting else {}
    found = final(base, **setting, **options).theta
    assert (found - final(base, **options).theta).abs().max() > 1e-4
    if base == "fedavg":
        name = "fedexp" if "server_step" in setting else "feddisco"
        own = {"name": name, **(setting.get("fedexp") or setting.get("feddisco"))}
        assert torch.equal(found, final(own, **options).theta)


def test_a_number_of_one_client_above_2_to_the_18() -> None:
    """A τ of Σ_k (1 - m^k)/(1 - m) = 311,930, a ||u||² of 10^6 ||g||². With η μ = 2 a is 1, then (1 - 2) 1 + 1 = 0."""
    many = {"rounds": 1, "local_steps": 800, "batch_size": 1, "momentum": 0.9999, "lr": 1e-8}
    for method, training in (("fednova", many), ("fedexp", {"rounds": 1, "local_steps": 1, "lr": 1000.0})):
        assert small.finish(small.simulation(method, (1, 1), training=training)).state.round == 1
    with small.refused("algorithm.mu: found 4; times the learning rate, 0.5, below 2 is required"):
        small.finish(small.simulation({"name": "fednova", "mu": 4.0}, training={"local_steps": 2, "lr": 0.5}))


def test_no_positive_weight_is_by_samples() -> None:
    """D-85."""
    counts = np.array([[4, 0], [0, 2]])
    assert np.allclose(FedDisco(a=9, b=0).weights(Cohort(counts.sum(1), lambda: counts)), [4 / 6, 2 / 6])


def test_what_is_saved_is_what_was_tested(tmp_path: Path) -> None:
    """The mean of the last two iterates; `theta_sha256` is that of the last one, from which training continues."""
    built, last = problem({"name": "fedexp", "epsilon": 1e-4}), final({"name": "fedexp", "epsilon": 1e-4})
    result = run(built, InlineBackend())
    assert torch.equal(result.theta, (last.theta + last.server["previous_theta"]) / 2)
    assert result.summary()["theta_sha256"] == digest_theta(last.theta) != digest_theta(result.theta)
    first = run(problem({"name": "fedexp", "epsilon": 1e-4}, rounds=1), InlineBackend())
    assert torch.equal(first.theta, first.state.theta), "x⁰ is in no mean"
    saved = load_file(result.save(tmp_path / "model.safetensors"))
    assert torch.equal(torch.cat([saved[name].flatten() for name in result.layout.names]), result.theta)
    loss = cross_entropy(result.model()(torch.from_numpy(built.data.x_test)), torch.from_numpy(built.data.y_test))
    assert float(loss.detach()) == pytest.approx(result.history[-1]["test_loss"], rel=1e-5)


@pytest.mark.parametrize(("feature_norm", "lines"), [("length", 1), ("model", 0)])
def test_a_model_without_its_methods_logits(feature_norm: str, lines: int, caplog: pytest.LogCaptureFixture) -> None:
    """`fedge@forms` tests W h/||h||, or what the head gives."""
    method = {"name": "fedge@forms", "feature_norm": feature_norm}
    run(problem(method), InlineBackend()).model()
    assert sum("model: fedge@forms tests logits of its own" in line for line in caplog.messages) == lines


RELAXED = {"relaxed_start": 0.1, "relaxed_average": "models"}


@each(
    ("fedavg", {"feddisco": {"a": 0.1}}, "feddisco: has options, but training.aggregation is samples"),
    ("fedavg", {"fedexp": {"epsilon": 0.1}}, "fedexp: has options, but training.server_step is average"),
    ("fedavg", {"relaxed_average": "models"}, "relaxed_average: found models, but training.relaxed_start is 0"),
    ("fednova", RELAXED, "relaxed_average: found models; fednova uses the updates themselves"),
    ({"name": "mofedsam", "step": "printed"}, RELAXED, "relaxed_average: found models; mofedsam uses the updates"),
    ({"name": "fedsol", "proximal": "fednova"}, RELAXED, "relaxed_average: found models; fedsol uses the updates"),
    ("fedas", RELAXED, "relaxed_average: found models; fedas uses the updates themselves"),
    ("fedavg", RELAXED | {"server_step": "fedexp"}, "relaxed_average: found models; fedexp uses the updates them"),
    ("feddisco", {"aggregation": "feddisco"}, "aggregation: found feddisco; feddisco has weights of its own"),
    ("fedexp", {"server_step": "fedexp"}, "server_step: found fedexp; fedexp has a server step of its own"),
    ("local-only", {"server_step": "fedexp"}, "server_step: fedexp scales the average"),
    ("local-only", {"relaxed_start": 0.1}, "relaxed_start: relaxes what clients receive; local-only sends nothing"),
)
def test_what_a_setting_refuses(method: Any, training: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=rf"^training\.{message}"):
        problem(method, **training)


class Negative(Algorithm):
    def weights(self, cohort: Cohort) -> np.ndarray:
        return np.array([-1.0, 1.0, 1.0])


class Unfit(Algorithm):
    def weights(self, cohort: Cohort) -> np.ndarray:
        return cohort.count_labels().sum(0) / cohort.samples.sum()


@pytest.mark.parametrize("kind", ["Negative", "Unfit"])
def test_weights_that_are_none_are_refused(kind: str) -> None:
    with pytest.raises(UserError, match=r"weights gives .*; 3 numbers of at least 0 that sum to 1 are required"):
        final(f"tests.algorithms.test_pieces:{kind}", per_round=3)
