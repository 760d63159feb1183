"""The base of probes: measurements other than accuracy in evaluated rounds, of each client, of the round, or of
both.
"""

import contextlib
import math
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from fedray.algorithms.base import Algorithm
from fedray.cells.metric import PREFIXES, PROFILE, RATIOS, ROUNDS_TO
from fedray.client import LocalClient
from fedray.common.errors import Slip, UserError, find_nearest, truncate_repr
from fedray.components.attributes import find_changed, list_attributes
from fedray.components.base import Component
from fedray.models.network import Layout, Output


@dataclass(frozen=True, kw_only=True)
class TrainedClient:
    """A client right after its local training; the network still holds its running statistics.

    correct, sums: of the local model on the whole test set, if a probe requests that pass (`Probe.tested_models`):
    correct answers per class `(C,)`, and the `test_sums` by name of the probe.
    """

    c: LocalClient
    algorithm: Algorithm
    correct: Tensor
    sums: Mapping[str, Tensor]
    test_samples: int


@dataclass(frozen=True, kw_only=True)
class EvaluatedRound:
    """A round after its aggregation.

    weights: client -> π_i. measured: client -> measurements of probes (`Probe.of_client`). update: Σ π_i u_i of the
    shared parameters. moved: the change of these on the server, from the parameters that clients received to those
    after aggregation. theta: the new global model. correct, sums: that model's on the whole test set, as for a
    `TrainedClient`; both empty for methods without a global model. test_counts: samples of the test set per class.
    holds(i): bool `(C,)`, True for the classes in client i's training samples. samples: client -> n_i.
    """

    weights: Mapping[int, float]
    measured: Mapping[int, Mapping[str, float]]
    update: Tensor | None
    moved: Tensor
    theta: Tensor
    layout: Layout
    correct: Tensor
    sums: Mapping[str, Tensor]
    test_counts: Tensor
    holds: Callable[[int], Tensor]
    samples: Mapping[int, int]


@contextlib.contextmanager
def refuse_writes(probe: "Probe", tensors: Mapping[str, Tensor], c: LocalClient | None = None) -> Iterator[None]:
    """Raise UserError if a block, a probe's hook, changes a tensor, by the probe's name of it, or a vector of `c`."""
    theta = None if c is None else c.theta
    held = dict(tensors)
    if c is not None:
        held |= {"c.theta": c.theta, "c.theta_0": c.theta_0}
        for name, vectors in (("state", c.state), ("message", c.message), ("local", c.local)):
            held |= {f"c.{name}.{entry}": vector for entry, vector in vectors.items()}
    before = [(name, tensor, tensor._version) for name, tensor in held.items()]
    attributes = list_attributes(probe) if ":" in probe.name else {}
    try:
        yield
    except Slip as slip:
        raise UserError(f"evaluation.probes: {probe.name} {slip}") from None
    changed = [name for name, tensor, version in before if tensor._version != version]
    if c is not None and c.theta is not theta:
        changed.append("c.theta")
    if attributes and (attribute := find_changed(probe, attributes)):
        raise UserError(
            f"evaluation.probes: {probe.name} changes its attribute {attribute}, with which a resume, or another "
            "process for its clients, would begin anew; a probe changes nothing"
        )
    if changed:
        raise UserError(f"evaluation.probes: {probe.name} changes {changed[0]}; a probe changes nothing")


def check_metrics(probe: "Probe", found: object, taken: Container[str]) -> dict[str, float]:
    """Return what a probe has found as numbers, without those that are not finite, which are undefined.

    Raises UserError if it is not a dictionary of numbers, or a metric's name cannot be logged, is taken or begins as a
    summary does, or is like a declared one that is not there.
    """
    if not isinstance(found, Mapping):
        raise UserError(
            f"evaluation.probes: {probe.name} returns a {type(found).__name__}; a dictionary of metrics is required"
        )
    numbers, declared = {}, {*probe.metrics, *probe.lower_is_better, *probe.unranked}
    for name, value in found.items():
        if not isinstance(name, str) or not re.fullmatch(r"[\w.:/ -]+", name):
            raise UserError(
                f"evaluation.probes: {probe.name} names a metric {truncate_repr(name)}; letters, digits, spaces and "
                "_ - . : / are allowed"
            )
        if near := find_meant(name, declared, found):
            raise UserError(
                f"evaluation.probes: {probe.name} measures {name}, which it does not declare; did you mean {near}? "
                "Otherwise declare both in `metrics`"
            )
        if name.startswith((*PREFIXES, PROFILE, ROUNDS_TO)) or name.partition(":")[0] in RATIOS:
            raise UserError(f"evaluation.probes: {probe.name} measures {name}, a name of a run's summary; rename it")
        if name in taken:
            raise UserError(f"evaluation.probes: {probe.name} measures {name}, which is measured already; rename it")
        try:
            number = float(value)
        except (TypeError, ValueError, RuntimeError):
            raise UserError(
                f"evaluation.probes: {probe.name} measures {name} = {truncate_repr(value)}; a number is required"
            ) from None
        if math.isfinite(number):
            numbers[name] = number
    return numbers


def find_declared(metric: str, names: Iterable[str]) -> str | None:
    """Return the declared name (`Probe.metrics`) that stands for a metric."""
    return next((n for n in names if metric == n or (n.endswith("*") and metric.startswith(n[:-1]))), None)


def find_meant(name: str, declared: AbstractSet[str], found: Container[str] = ()) -> str:
    """Return the declared metric of which another name is a slip; empty for none. found: all names of its dictionary.

    No slip is a name that begins with a declared one, or differs from it in digits alone: of a class, of a layer.
    """
    plain = re.sub(r"\d", "", name)
    if find_declared(name, declared) or any(
        name.startswith(f"{one}_") or re.sub(r"\d", "", one) == plain for one in declared
    ):
        return ""
    return find_nearest(name, [one for one in declared if one not in found], 0.8)


class Probe(Component):
    """Base of all probes; by itself it measures nothing. Subclasses override what they need.

    A probe changes nothing: neither parameters, states, running statistics nor random draws. Its fields are its
    options. To use your own, give `package.module:Class` in `evaluation.probes`, or a mapping with it as `name` and the
    options next to it.
    """

    section = "evaluation.probes"
    metrics: ClassVar[Mapping[str, str]] = {}
    """Metric -> title, with its unit. A name that ends in `*` stands for all names with this prefix."""
    lower_is_better: ClassVar[AbstractSet[str]] = frozenset()
    """The metrics whose smallest value is the best, by the names in `metrics`; of all others the largest is the best.

    Tables and comparisons follow this.
    """
    unranked: ClassVar[AbstractSet[str]] = frozenset()
    """The metrics without a best value: tables show them without a rank, and comparisons refuse them."""
    tested_models: ClassVar[AbstractSet[Literal["local", "global"]]] = frozenset()
    """Models that this probe needs on the test set, in one pass for all probes; `test_sums` is called on these.

    The default is the global model for a probe with `test_sums`, else none.
    """

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        super().__pydantic_init_subclass__(**options)
        if "test_sums" in cls.__dict__ and "tested_models" not in cls.__dict__:
            cls.tested_models = frozenset({"global"})

    def check(self, algorithm: Algorithm) -> None:
        """Check the method when the configuration is read. Raises UserError if the probe cannot measure it."""

    def check_built(self, layout: Layout, classes: int) -> None:
        """Check the model once it is built. Raises UserError."""

    def test_sums(self, output: Output, y: Tensor, classes: int) -> Tensor | None:
        """Return the sums over one batch of the test set with labels y int64 `(n,)`; None for no sums.

        Those of the global model end the run if they are not finite, or reach 6.5e10 divided by the number of samples.
        """
        return None

    def of_step(self, c: LocalClient, algorithm: Algorithm, q: Tensor) -> dict[str, float]:
        """Return the metrics of one local step before it is taken; a client's metric is the mean over its steps.

        Args:
            c: the client at y, with the batch of the step.
            algorithm: the method.
            q: float32 `(P,)`, the direction that it descends, 0 on what it does not move; before clipping, weight decay
                and momentum.
        """
        return {}

    def of_client(self, seen: TrainedClient) -> dict[str, float]:
        """Return the metrics of one client. The round logs their mean over the cohort and, as `NAME_std`, their
        deviation.
        """
        return {}

    def of_round(self, seen: EvaluatedRound) -> dict[str, float]:
        """Return the metrics of the whole round."""
        return {}
