"""FedExP's step and FedDisco's weights: as methods, as settings of others, and cases in which they are FedAvg."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

from fedray.algorithms.base import Algorithm, Cohort
from fedray.algorithms.feddisco import FedDisco
from fedray.common.errors import UserError
from fedray.engine.loop import run
from fedray.engine.process.backend import InlineBackend
from fedray.engine.state import digest_theta
from tests.algorithms.digits import final, problem

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
    saved = load_file(result.save(tmp_path / "model.safetensors"))
    assert torch.equal(torch.cat([saved[name].flatten() for name in result.layout.names]), result.theta)
    logits = result.model()(torch.from_numpy(built.data.x_test))
    loss = cross_entropy(logits, torch.from_numpy(built.data.y_test))
    assert float(loss.detach()) == pytest.approx(result.history[-1]["test_loss"], rel=1e-5)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"server_step": "fedexp"}, "server_step: fedexp scales the average"),
        ({"relaxed_start": 0.1}, "relaxed_start: relaxes what clients receive; local-only sends nothing"),
    ],
)
def test_without_an_average_there_is_no_step(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=rf"^training\.{message}"):
        problem("local-only", **setting)


@pytest.mark.parametrize(
    ("method", "training", "message"),
    [
        ("fedavg", {"feddisco": {"a": 0.1}}, "feddisco: has options, but training.aggregation is samples"),
        ("fedavg", {"fedexp": {"epsilon": 0.1}}, "fedexp: has options, but training.server_step is average"),
        ("fedavg", {"relaxed_average": "models"}, "relaxed_average: found models, but training.relaxed_start is 0"),
        ("feddisco", {"aggregation": "feddisco"}, "aggregation: found feddisco; feddisco has weights of its own"),
        ("fedexp", {"server_step": "fedexp"}, "server_step: found fedexp; fedexp has a server step of its own"),
    ],
)
def test_what_a_setting_refuses(method: str, training: dict[str, Any], message: str) -> None:
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
        final(f"tests.algorithms.test_settings:{kind}", per_round=3)
