"""What a probe is: something measured in evaluated rounds beside accuracy, of each client, of the round, or of both."""

import re
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from fedray.algorithms.base import Algorithm
from fedray.client import LocalClient
from fedray.common.component import Component
from fedray.common.errors import UserError, truncated_repr
from fedray.models.network import Layout, Output


@dataclass(frozen=True)
class TrainedClient:
    """A client right after its local training; the network still holds its running statistics.

    correct, sums: of the local model on the whole test set, where a probe asks for that pass (`Probe.tested_models`):
    right answers per class `(C,)`, and, by the name of the probe, its `test_sums`.
    """

    c: LocalClient
    algorithm: Algorithm
    correct: Tensor
    sums: Mapping[str, Tensor]
    test_samples: int


@dataclass(frozen=True)
class EvaluatedRound:
    """A round after its aggregation.

    weights: client -> π_i. measured: client -> what probes found of it (`Probe.of_client`). update: Σ π_i u_i of the
    shared parameters. moved: how far these have moved on the server, from what clients received to what they are after
    aggregation. theta: the new global model. correct, sums: of that model on the whole test set, as those of a
    `TrainedClient`, but `sums` are divided by 500; both empty for methods without a global model. test_counts: samples
    of the test set per class. holds(i): which classes client i has training samples of, bool `(C,)`.
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


def checked(probe: "Probe", found: object, taken: Container[str]) -> dict[str, float]:
    """What a probe has measured, as numbers.

    Args:
        probe: which one.
        found: what its `of_client` or `of_round` gave.
        taken: metrics that have been measured already.

    Raises:
        UserError: it is no dictionary of numbers, or a metric's name cannot be logged or is taken.
    """
    if not isinstance(found, Mapping):
        raise UserError(
            f"evaluation.probes: {probe.name} returns a {type(found).__name__}; a dictionary of metrics is required"
        )
    numbers = {}
    for name, value in found.items():
        if not isinstance(name, str) or not re.fullmatch(r"[\w.:/ -]+", name):
            raise UserError(
                f"evaluation.probes: {probe.name} names a metric {truncated_repr(name)}; letters, digits, spaces and "
                "_ - . : / are allowed"
            )
        if name in taken:
            raise UserError(f"evaluation.probes: {probe.name} measures {name}, which is measured already; rename it")
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError, RuntimeError):
            raise UserError(
                f"evaluation.probes: {probe.name} measures {name} = {truncated_repr(value)}; a number is required"
            ) from None
    return numbers


class Probe(Component):
    """Base of all probes; by itself it measures nothing. Subclasses override what they need.

    A probe changes nothing: neither parameters, states, running statistics nor random draws. Its fields are its
    options. To use your own, give `package.module:Class` in `evaluation.probes`, or a mapping with it as `name` and the
    options beside it.
    """

    section = "evaluation.probes"
    metrics: ClassVar[Mapping[str, str]] = {}
    """Metric -> title, with its unit. A name that ends in `*` stands for all that begin so."""
    lower_is_better: ClassVar[frozenset[str]] = frozenset()
    """Those of `metrics` whose smallest value is the best: tables mark it, comparisons call it better."""
    tested_models: ClassVar[frozenset[Literal["local", "global"]]] = frozenset()
    """Which models answer the test set for this probe, in one pass for all probes; `test_sums` is called on these."""

    def check(self, algorithm: Algorithm) -> None:
        """Called when the configuration is read. Raises UserError where the method cannot give this."""

    def check_built(self, layout: Layout, classes: int) -> None:
        """The same once the model is there. Raises UserError."""

    def test_sums(self, output: Output, y: Tensor, classes: int) -> Tensor | None:
        """What to sum over the test set; here of one batch with labels y int64 `(n,)`. None for nothing."""
        return None

    def of_client(self, seen: TrainedClient) -> dict[str, float]:
        """Metrics of one client. The round logs their mean over the cohort and, as `NAME_std`, their deviation."""
        return {}

    def of_round(self, seen: EvaluatedRound) -> dict[str, float]:
        """Metrics of the whole round."""
        return {}
