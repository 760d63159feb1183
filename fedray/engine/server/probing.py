"""Measure an evaluated round with probes: means over the cohort, and values of the round."""

import contextlib
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedray.cells.metric import KNOWN, ONCE
from fedray.client import CHUNK
from fedray.common.errors import UserError
from fedray.common.rng import key_draws
from fedray.common.vectors import Vectors
from fedray.engine.exact_sum import REST, add_up
from fedray.engine.guard import refuse_shapes
from fedray.engine.messages import Broadcast, Reply
from fedray.engine.problem import Problem
from fedray.engine.server.evaluate import get_tested_theta
from fedray.engine.state import State
from fedray.models.network import Layout
from fedray.probes.probe import EvaluatedRound, check_metrics, refuse_writes
from fedray.probes.probes import summarise_cohort


class Trained:
    """Result of a round's local training: the uploads of all processes, added up, and the per-client parts of `reply`.

    weights: client -> π_i, for clients that took part; `dropped` is the number of those whose numbers went wrong.
    train_loss: mean of the clients' losses. update: U of the shared parameters, buffers: mean change of the running
    statistics that are exchanged; None if none are. uploads: the method's own, exact sums, and `(M, ...)` for those
    that are not summed, by ascending client.
    """

    def __init__(
        self, weights: dict[int, float], broadcast: Broadcast, parts: Sequence[Reply], reply: Reply, dropped: int
    ) -> None:
        self.weights, self.broadcast, self.reply, self.dropped = weights, broadcast, reply, dropped
        for name in {name for part in parts for name in part.sums}:
            sent = [part.sums for part in parts if name in part.sums]
            refuse_shapes(name, [sums[name].shape for sums in sent], [name + REST in sums for sums in sent])
        each, sums = reply.each, add_up([part.sums for part in parts])
        names = sorted({name for vectors in each.values() for name in vectors})
        for name in names:
            having = {i for i in each if name in each[i]}
            if lacking := weights.keys() - having:
                found = f"client {min(having)} has an upload {name!r} and client {min(lacking)} has none"
                raise UserError(f"algorithm: {found}; what is not summed is required from each client of a round")
            vectors = [each[i][name] for i in sorted(each)]
            refuse_shapes(name, [vector.shape for vector in vectors])
            sums[name] = torch.stack(vectors)
        self.train_loss = float(sums.pop("train_loss"))
        self.update, self.buffers = sums.pop("update", None), sums.pop("buffers", None)
        self.uploads = Vectors(sorted(sums.items()))  # the order of parts depends on how many processes there are


def measure_round(
    problem: Problem,
    layout: Layout,
    shared: Tensor,
    state: State,
    trained: Trained,
    tested: Mapping[str, Tensor],
    row: Mapping[str, float],
) -> dict[str, float]:
    """Return the probes' metrics of a round, given the state after it and the sums over the test set.

    shared: positions in theta of the parameters that clients and server exchange, int64.
    Raises UserError if a probe uses the name of a metric in `row`, which is measured without a probe.
    """
    data, shards, measured = problem.data, problem.split.train, trained.reply.probes
    probes = problem.config.evaluation.probes
    names = {probe.name for probe in probes}  # `evaluate` has divided their sums by `CHUNK`, to add them up exactly
    tested = {name: vector * CHUNK if name in names else vector for name, vector in tested.items()}
    seen = EvaluatedRound(
        weights=trained.weights,
        measured=measured,
        update=trained.update,
        moved=(state.theta - trained.broadcast.theta)[shared],
        theta=get_tested_theta(state),
        layout=layout,
        correct=tested.get("correct", torch.zeros(0)),
        sums=tested,
        test_counts=torch.from_numpy(np.bincount(data.y_test[problem.evaluated["test"]], minlength=data.num_classes)),
        holds=lambda i: torch.from_numpy(np.bincount(data.y_train[shards[i]], minlength=data.num_classes) > 0),
        samples={i: int(shards.sizes[i]) for i in trained.weights},
    )
    metrics = summarise_cohort(measured)
    with key_draws(problem.config.has_own_code, problem.config.seed, "probes", state.round):
        for probe in probes:
            tensors = {name: value for name, value in vars(seen).items() if isinstance(value, Tensor)}
            own = ":" in probe.name
            key = key_draws(own, problem.config.seed, f"probe {probe.name}", state.round)
            with refuse_writes(probe, tensors), key if own else contextlib.nullcontext():
                metrics |= check_metrics(probe, probe.of_round(seen), metrics)
    if taken := metrics.keys() & {*row, "lr", *KNOWN, *ONCE}:
        raise UserError(f"evaluation.probes: {min(taken)} is measured without a probe; rename the probe's metric")
    return metrics
