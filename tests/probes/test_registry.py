"""Probes by name, fedray's and the user's; the names of their metrics on an axis."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import Field, PrivateAttr
from torch import Tensor

from fedray.algorithms.base import Algorithm, Client, Forward
from fedray.cells.metric import BY_ROUND, KNOWN, Metric
from fedray.client import LocalClient
from fedray.common.errors import UserError
from fedray.components.sources import digest_source
from fedray.config import RunConfig
from fedray.engine.loop import run
from fedray.engine.process.backend import InlineBackend
from fedray.engine.sampling import draw_cohort
from fedray.models.network import Output
from fedray.probes import DECLARED, PROBES, make_probes, title_metric
from fedray.probes.probe import EvaluatedRound, Probe, TrainedClient, find_declared
from tests import small
from tests.conftest import each
from tests.probes.probed import EVERY_PROBE, digits, last_row, measure_everything

OWN, COUNTED = "tests.probes.test_registry:Sizes", "tests.probes.test_registry:Counted"


class Sizes(Probe):
    """Samples of each client; test samples per class, by a pass over the test set."""

    name, tested_models = "sizes", frozenset({"local", "global"})

    def test_sums(self, output: Output, y: Tensor, classes: int) -> Tensor:
        return y.bincount(minlength=classes).float()

    def of_client(self, seen: TrainedClient) -> dict[str, float]:
        return {"shard": float(seen.c.samples), "tested": float(seen.sums[self.name].sum())}

    def of_round(self, seen: EvaluatedRound) -> dict[str, float]:
        return {"cohort": float(len(seen.weights)), "counted": float(seen.sums[self.name].sum())}


class Counted(Probe):
    times: int = Field(1, ge=1)

    def of_round(self, seen: EvaluatedRound) -> dict[str, float]:
        return {"counted": float(self.times * len(seen.weights))}


def test_an_own_probe_measures_clients_the_test_set_and_the_round_and_its_draws_are_keyed() -> None:
    problem = digits("fedavg", probes=[OWN, "drift"])
    row = last_row(problem)
    cohort = draw_cohort(problem.config, problem.split.train.sizes, problem.config.training.rounds - 1)
    n = len(problem.data.y_test)
    assert row["shard"] == pytest.approx(float(np.mean([len(problem.split.train[i]) for i in cohort])))
    assert (row["tested"], row["tested_std"], row["cohort"], row["counted"]) == (n, 0, 3, n)
    assert "drift_between" in row
    asked = digits("fedavg", probes=["tests.probes.test_registry:Guesses"])
    first, second = ([row["guess"] for row in run(asked, InlineBackend()).history] for _ in range(2))
    assert first == second
    assert len(set(first)) == len(first) > 1


class Guesses(Probe):
    tested_models = frozenset({"global"})

    def test_sums(self, output: Output, y: Tensor, classes: int) -> Tensor:
        return torch.rand(1)

    def of_round(self, seen: EvaluatedRound) -> dict[str, float]:
        return {"guess": float(seen.sums[self.name].sum())}


def test_the_options_of_a_probe_reach_the_round_and_with_its_source_the_identity() -> None:
    """Three of six clients per round; `times` is 1 unless it is given, 4 · 3 = 12."""
    assert last_row(digits("fedavg", probes=[COUNTED, "drift"]))["counted"] == 3
    problem = digits("fedavg", probes=["drift", {"name": COUNTED, "times": 4}])
    assert last_row(problem)["counted"] == 12
    written = problem.config.resolve()
    assert written["evaluation"]["probes"] == ["drift", {"name": COUNTED, "times": 4}]
    assert RunConfig.parse(written) == problem.config

    # The plain spelling and one that repeats the defaults are the same cell.
    def entered(*asked: object) -> dict[str, Any]:
        return digits("fedavg", probes=asked).config.make_identity("")

    plain = entered("drift", COUNTED)
    assert plain["evaluation"]["probes"] == [{"name": "drift"}, {"name": COUNTED}]
    assert plain["sources"][COUNTED] == digest_source("evaluation.probes", COUNTED)
    assert entered({"name": "drift"}, {"name": COUNTED, "times": 1}) == plain
    assert entered({"name": COUNTED, "times": 4})["evaluation"]["probes"] == [{"name": COUNTED, "times": 4}]


@each(
    ([{"name": "drift", "k": 3}], "k: drift has no options"),
    ([{"name": COUNTED, "times": 0}], "times: found 0; input should be greater than or equal to 1"),
    ([{"name": COUNTED, "tims": 2}], "unknown name 'tims'; did you mean 'times'?"),
    ([COUNTED, {"name": COUNTED, "times": 2}], "each once"),
    ([3], "expected a name or a mapping with `name`, got 3"),
    (["drfit"], "unknown name 'drfit'; did you mean 'drift'?"),
    ([f"{__name__}:Disagrees"], "traveled in unranked, which is not in `metrics`; did you mean travelled?"),
    ([f"{__name__}:Worded"], "declares lower_is_better = 'travelled'; Set[str] is required"),
    ([f"{__name__}:OtherModel"], "tested_models = {'locale'}; Set[Literal['local', 'global']] is required"),
)
def test_what_is_no_probe_is_refused_in_one_line(names: list[object], message: str) -> None:
    with pytest.raises(UserError, match=rf"\Aevaluation\.probes.*{re.escape(message)}.*\Z"):
        make_probes(names)


def test_every_metric_of_a_probe_has_a_title_and_every_metric_of_a_run_is_declared() -> None:
    """All that a run can log has a title and a better end, in the table of metrics or with its probe; no name guesses.

    The deviation NAME_std of a client's measurement has those of its form."""
    plain, row = measure_everything()
    scaled = last_row(digits("fedgela", {"name": "mlp", "hidden": [16]}, ["adaptation"]))
    measured = (row.keys() | scaled.keys()) - plain.keys()
    assert len({title_metric(name) for name in measured}) == len(measured)
    assert all(title_metric(name) != name for name in measured)
    assert title_metric("accuracy_class_3") == "accuracy of the class (%) 3"
    assert title_metric("test_accuracy") == "test_accuracy"
    known = {metric.removesuffix("_std") for metric in measured}
    for kind in PROBES.values():
        for name in kind.metrics:
            assert any(one.startswith(name.rstrip("*")) for one in known), f"{kind.__name__} declares {name}, logs none"
    personal = {"every": 1, "epochs": [0, 1], "train": True}
    evaluation = {"train": True, "auc": True, "personal": personal, "probes": EVERY_PROBE}
    data = {"name": "digits", "validation": {"fraction": 0.2, "from": "clients"}}
    clients, training = (
        {"total": 6, "per_round": 3, "unseen": 2},
        {"rounds": 1, "local_epochs": 1, "batch_size": 20, "on_divergence": "drop"},
    )
    problem = small.problem("fedsol", clients, data=data, training=training, evaluation=evaluation)
    record = run(problem, InlineBackend()).record()
    logged = {name for row in record.history for name in row} | record.totals.keys()
    plain = {Metric.parse(name).plain for name in logged - {"round", "lr"}}
    deviations = {name for name in plain - BY_ROUND.keys() if name.endswith("_std")}
    assert {name.removesuffix("_std") for name in deviations} <= plain
    rest = plain - deviations - KNOWN.keys()
    undeclared = {name for name in rest if find_declared(name, DECLARED) is None}
    assert undeclared == set(), "give it a title in BY_ROUND of fedray/cells/metric.py, or in its probe's `metrics`"
    unlogged = {"seconds", "megabytes_kept_by_client", "megabytes_held_by_client", "megabytes_kept_by_server"}
    missing = KNOWN.keys() - plain - unlogged - {"relative_flops"}
    assert missing == set(), "give this test's run the key without which none logs it (`needs`)"
    assert plain & unlogged == set()


class Gives(Probe):
    of: str = "round"
    given: Any

    def of_round(self, seen: EvaluatedRound) -> dict[str, float]:
        return self.given if self.of == "round" else {}  # type: ignore[no-any-return]

    def of_client(self, seen: TrainedClient) -> dict[str, float]:
        return self.given if self.of == "client" else {}  # type: ignore[no-any-return]


class Declares(Probe):
    """Gives any metrics; it declares one, one of each class, and two ranks in plain sets."""

    metrics, lower_is_better, unranked = {"travelled": "length", "accuracy_class_*": "accuracy"}, {"waste"}, {"angle_*"}
    given: Any

    def of_round(self, seen: EvaluatedRound) -> dict[str, float]:
        return dict.fromkeys(self.given, 1.0)


@each(("travveled", "travelled"), ("acuracy_class_3", r"accuracy_class_\*"), ("wast", "waste"))
def test_a_metric_that_is_like_a_declared_one_is_refused(given: str, meant: str) -> None:
    own = {"name": "tests.probes.test_registry:Declares", "given": [given]}
    said = f"measures {given}, which it does not declare; did you mean {meant}\\? Otherwise declare both in `met"
    with pytest.raises(UserError, match=f"^evaluation.probes: .*Declares {said}"):
        last_row(digits("fedavg", probes=[own]))


def test_a_metric_of_a_class_or_layer_or_of_another_name_is_none() -> None:
    given = ["accuracy_class_3", "angle_conv1", "travelled_conv1", "travelled2", "shard", "travelled", "travellend"]
    own = {"name": "tests.probes.test_registry:Declares", "given": given}
    assert last_row(digits("fedavg", probes=[own])).keys() >= {*given}


class Writes(Probe):
    """Changes what it was asked to look at."""

    what: str

    def of_step(self, c: LocalClient, algorithm: Algorithm, q: Tensor) -> dict[str, float]:
        if self.what == "q":
            q.div_(q.norm())
        elif self.what == "c.theta":
            c.theta = 2 * c.theta
        elif self.what == "c.message.c":
            c.message.c.zero_()
        elif self.what == "c.local.v":
            c.local.v.zero_()
        return {}

    def of_client(self, seen: TrainedClient) -> dict[str, float]:
        if self.what == "c.state.c":
            seen.c.state.c.zero_()
        elif self.what == "c.theta_0":
            seen.c.theta_0.mul_(0.5)
        return {}

    def of_round(self, seen: EvaluatedRound) -> dict[str, float]:
        if self.what == "theta":
            seen.theta.sub_(1)
        return {}


class HoldsLocal(Algorithm):
    def begin(self, c: Client) -> None:
        c.local.v = torch.ones(3)


@pytest.mark.parametrize("what", ["q", "c.theta", "c.theta_0", "c.message.c", "c.state.c", "theta", "c.local.v"])
def test_a_probe_that_changes_something_is_refused(what: str) -> None:
    """The run went on with the changed numbers."""
    algorithm = "tests.probes.test_registry:HoldsLocal" if what == "c.local.v" else "scaffold"
    with pytest.raises(UserError, match=f"Writes changes {re.escape(what)}; a probe changes nothing$"):
        last_row(digits(algorithm, probes=[{"name": "tests.probes.test_registry:Writes", "what": what}]))


class Remembers(Probe):
    _last: Any = PrivateAttr(default=None)

    def of_round(self, seen: EvaluatedRound) -> dict[str, float]:
        self._last = seen.update
        return {}


def test_a_probe_that_remembers_or_whose_loss_reads_theta_is_refused() -> None:
    """It would begin anew after a resume."""
    with small.refused("Remembers changes its attribute _last, with which a resume, or another process"):
        last_row(digits("fedavg", probes=[f"{__name__}:Remembers"]))
    with pytest.raises(UserError, match=r"^evaluation\.probes: \S*:ReadsTheta reads c\.theta in the loss of c\.grad, "):
        last_row(digits("fedavg", probes=["tests.probes.test_registry:ReadsTheta"]))


class ReadsTheta(Probe):
    """A term in theta, whose gradient it does not get."""

    def of_step(self, c: LocalClient, algorithm: Algorithm, q: Tensor) -> dict[str, float]:
        def loss(forward: Forward) -> Tensor:
            return forward(c.x).logits.mean() + c.theta.square().sum()

        return {"length": float(c.grad(c.theta, loss).norm())}


class Disagrees(Probe):
    metrics, unranked = {"travelled": "length"}, {"traveled"}


class Worded(Probe):
    """A word, of which each letter would be a name."""

    lower_is_better = "travelled"  # type: ignore[assignment]


class OtherModel(Probe):
    tested_models = {"locale"}  # type: ignore[assignment]


@pytest.mark.parametrize("of", ["round", "client"])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"test_accuracy": 1.0}, "test_accuracy is measured without a probe"),
        ({"seconds_per_round": 1.0}, "seconds_per_round is measured without a probe"),
        ({"drift": 1.0}, "Gives measures drift, which is measured already"),
        ({"best_test_accuracy": 1.0}, "Gives measures best_test_accuracy, a name of a run's summary"),
        ({"speedup": 1.0}, "Gives measures speedup, a name of a run's summary"),
        ({"mine": "high"}, "Gives measures mine = 'high'; a number is required"),
        ({"50%": 1.0}, "Gives names a metric '50%'; letters, digits"),
        (None, "Gives returns a NoneType; a dictionary of metrics is required"),
    ],
    ids=str,
)
def test_what_probes_give_is_refused_if_it_cannot_be_logged_beside_others(given: object, message: str, of: str) -> None:
    """A string would end the sweep in the driver, and a metric of a name that is taken would replace it."""
    own = {"name": "tests.probes.test_registry:Gives", "given": given, "of": of}
    with pytest.raises(UserError, match=f"evaluation.probes: .*{message}"):
        last_row(digits("fedavg", probes=["drift", own]))


def test_a_deviation_over_clients_is_no_metric_of_another_probe() -> None:
    """It took the place of the mean: `mine_std` is of the round's clients, if `mine` is of a client."""
    own = {"name": "tests.probes.test_registry:Gives", "given": {"mine": 1.0, "mine_std": 2.0}}
    assert last_row(digits("fedavg", probes=[own]))["mine_std"] == 2
    with small.refused("mine_std is the deviation of another metric; rename the metric"):
        last_row(digits("fedavg", probes=[own | {"of": "client"}]))


class Energy(Probe):
    scale: float

    def test_sums(self, output: Output, y: Tensor, classes: int) -> Tensor:
        return self.scale * output.logits.square().sum(0)


@pytest.mark.parametrize(("scale", "said"), [(3e38, "is not finite"), (1e30, "is too large to be summed exactly")])
def test_sums_over_the_test_set_that_cannot_be_added_are_refused(scale: float, said: str) -> None:
    with small.refused(f"evaluation.probes: the sum {__name__}:Energy {said}"):
        last_row(digits("fedavg", probes=[{"name": f"{__name__}:Energy", "scale": scale}]))
