"""Measuring changes nothing, costs only what the chosen probes need, and is refused if it has no meaning."""

from typing import Any

import pytest
import torch

from fedray.algorithms import ALGORITHMS
from fedray.common.errors import UserError
from fedray.config import RunConfig
from fedray.engine.loop import run
from fedray.engine.problem import Problem
from fedray.engine.process import train
from fedray.engine.process.backend import InlineBackend
from fedray.engine.server.simulation import Simulation
from tests import small
from tests.algorithms import quadratic
from tests.methods import METHODS
from tests.probes.probed import EVERY_PROBE, digits, last_row, measure_everything, with_probes


def outcome(problem: Problem) -> tuple[str, str, list[dict[str, float]]]:
    return small.outcome(Simulation(problem, InlineBackend()))


@pytest.mark.parametrize("method", METHODS)
def test_probes_change_nothing(method: str) -> None:
    """Not the parameters, the clients' states, the running statistics, the other metrics, or torch's generator."""
    kind = ALGORITHMS[method]
    refused = {
        "lambda": method != "fedsol",
        "classes": kind.keeps != "none",
        "drift": kind.shares == "none",
        "proximal": kind.shares == "none",
        "step": kind.shares == "none",
    }
    probes = [probe for probe in EVERY_PROBE if not refused.get(probe)]
    model: Any = {"name": "mlp", "hidden": [12]} if kind.reads_taps else "tests.probes.probed:Careful"
    without = outcome(digits(method, model))
    before = torch.get_rng_state()
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
    rounds: list[int] = []
    probe_client = train.probe_client

    def counted(probes: Any, c: Any, *rest: Any) -> dict[str, float]:
        rounds.append(c._round + 1)
        return probe_client(probes, c, *rest)

    monkeypatch.setattr(train, "probe_client", counted)
    result = run(digits("fedavg", probes=["drift"], every=2, rounds=5), InlineBackend())
    assert rounds == [2, 2, 2, 4, 4, 4, 5, 5, 5]
    assert [row["round"] for row in result.history] == [2, 4, 5]
    assert all("drift" in row for row in result.history)


@pytest.mark.parametrize(
    ("algorithm", "evaluation", "message"),
    [
        ("fedavg", {"probes": ["lambda"]}, "adaptive); fedavg has no such radius"),
        ({"name": "fedsol", "radius": "fixed"}, {"probes": ["lambda"]}, "adaptive); fedsol has no such radius"),
        ("fedrep", {"probes": ["classes"]}, "evaluation.probes: classes tests the global model; fedrep has none"),
        ("local-only", {"auc": True}, "evaluation.auc: tests the global model; local-only has none"),
        ("fedrep", {"train": True}, "evaluation.train: tests the global model; fedrep has none"),
        ("fedproto", {"probes": ["drift"]}, "probes: drift compares with the global model; fedproto has none"),
    ],
)
def test_what_cannot_be_measured_is_refused(algorithm: Any, evaluation: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as raised:
        RunConfig.parse(
            {"data": "digits", "partition": "iid", "model": "mlp", "algorithm": algorithm, "evaluation": evaluation}
        )
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_angles_without_a_linear_head_are_refused() -> None:
    """Before anything starts: the quadratic's head has one row for two classes."""
    case = quadratic.Case({"name": "fedavg"}, [{}])
    with pytest.raises(UserError, match=r"evaluation\.probes: angles need a head whose weight has a row for each of 2"):
        Simulation(with_probes(quadratic.problem(case), ["angles"]), InlineBackend())
