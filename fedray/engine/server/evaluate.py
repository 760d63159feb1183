"""Test a run's state on a backend: the global model on whole sets, personal models on their clients' samples."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fedray.common.errors import Diverged
from fedray.common.vectors import Vectors
from fedray.engine.exact_sum import add_up
from fedray.engine.messages import Broadcast, ClientTask, PersonalEval
from fedray.engine.problem import Problem
from fedray.engine.process.backend import Backend
from fedray.engine.process.evaluate import MAX_TEST_LOSS, SCORES, count_chunks
from fedray.engine.state import State
from fedray.probes.scores import (
    Table,
    average_everyone,
    measure_auc,
    measure_classes,
    summarise,
    summarise_clients,
    summarise_newcomers,
    tabulate_clients,
    tabulate_confusion,
)

PREVIOUS_THETA = "previous_theta"
"""Name among the server's vectors of the iterate before the last; algorithms do not see it."""


@dataclass(frozen=True)
class Tested:
    """Test results of a state: its metrics, and tables as `State.tables`.

    sums: those over the test set from which the metrics are computed; empty without a global model.
    """

    row: dict[str, float]
    sums: dict[str, Tensor]
    tables: dict[str, Table]


def get_tested_theta(state: State) -> Tensor:
    """Return the global model that is tested, float32 `(P,)`: x, or the mean of the last two (`tests_average`)."""
    if PREVIOUS_THETA in state.server and state.round > 1:
        return (state.theta + state.server[PREVIOUS_THETA]) / 2
    return state.theta


@dataclass(frozen=True)
class Tester:
    """The tests of one state. `broadcast` returns what a given number of clients would receive now."""

    problem: Problem
    backend: Backend
    state: State
    broadcast: Callable[[int], Broadcast]

    def test(self) -> Tested:
        """Take every test that the configuration asks for after this round. Raises Diverged."""
        config, s = self.problem.config, self.state
        asked, algorithm = config.evaluation, config.algorithm
        row: dict[str, float] = {}
        sums: dict[str, Tensor] = {}
        tables: dict[str, Table] = {}
        stored: dict[int, dict[str, float]] = {}
        if algorithm.keeps == "none":
            sums = self._sum("test")
            tables |= {"confusion": tabulate_confusion(sums["confusion"])} if "confusion" in sums else {}
            labels = self.problem.data.y_test[self.problem.evaluated["test"]]
            row |= {"test_accuracy": 100 * float(sums["correct"].sum()) / len(labels), "test_loss": float(sums["loss"])}
            counts = np.bincount(labels, minlength=self.problem.data.num_classes)
            row |= measure_classes(sums["correct"], sums["answers"], counts)
            if asked.auc:
                parts = [sums.pop(f"{SCORES}{chunk}").double() for chunk in range(count_chunks(len(labels)))]
                high, low = np.concatenate(parts, axis=1)
                row |= measure_auc(high * 2**15 + low, labels)
            row |= self._validate()
        else:
            stored = self.test_personal(PersonalEval((0,), own=False, everyone=True))
            row |= average_everyone(stored)
        if asked.train:
            count = len(self.problem.evaluated["train"])
            row["train_accuracy"] = 100 * float(self._sum("train")["correct"].sum()) / count
        if asked.personal is None:
            return Tested(row, sums, tables)
        if asked.is_personal_due(s.round, config.training.rounds):
            epochs = asked.personal.tuned if algorithm.personal == "tuned" else (0,)
            request = PersonalEval(epochs, own=True, everyone=not algorithm.generic, train=asked.personal.train)
            scores = self.test_personal(request)
            generic = row["test_accuracy"] if algorithm.generic else None
            assert self.problem.split.test is not None  # noqa: S101 (`evaluation.personal` deals test samples)
            row |= summarise(scores, epochs, generic, self.problem.split.test.sizes)
            newcomers: dict[int, dict[str, float]] = {}
            if self.problem.split.unseen is not None:
                request = PersonalEval(asked.personal.tuned, own=True, everyone=False, newcomers=True)
                newcomers = self.test_personal(request)
                row |= summarise_newcomers(newcomers, asked.personal.tuned)
            last, sizes = asked.personal.tuned[-1], self.problem.split.dealt.sizes
            tables["clients"] = tabulate_clients(scores, epochs[-1], newcomers, last, sizes)
        elif algorithm.generic:
            row["generic_accuracy"] = row["test_accuracy"]
        elif stored and algorithm.personal == "kept":
            own = {i: stored[i] for i in self.list_tested(own=True)}
            row["generic_accuracy"] = average_everyone(own)["test_accuracy"]
        return Tested(row, sums, tables)

    def _validate(self) -> dict[str, float]:
        """Metrics of the global model on held-out samples: as one set and, if clients own them, over the clients."""
        if self.problem.split.validation is None:
            return {}
        sums, count = self._sum("validation"), len(self.problem.split.validation.indices)
        row = {
            "validation_accuracy": 100 * float(sums["correct"].sum()) / count,
            "validation_loss": float(sums["loss"]),
        }
        if self.problem.own_validation is None:
            return row
        sizes = self.problem.split.validation.sizes
        return row | summarise_clients("validation_client", 100 * sums["correct_of_clients"].numpy() / sizes[sizes > 0])

    def _sum(self, split: str) -> dict[str, Tensor]:
        s = self.state
        sums = add_up(self.backend.evaluate(get_tested_theta(s), s.buffers, split, s.round))
        if float(sums["unbounded"]):
            raise Diverged(self.state.round, None, f"the {split} loss is not finite or above {MAX_TEST_LOSS:g}")
        return sums

    def test_personal(self, request: PersonalEval) -> dict[int, dict[str, float]]:
        """Return the scores of `list_tested`, or of newcomers: client -> test -> value. Raises Diverged."""
        s = self.state
        ids = self.problem.split.newcomers.tolist() if request.newcomers else self.list_tested(request.own)
        tasks = [ClientTask(i, 1 / len(ids), s.clients.get(i, Vectors())) for i in ids]
        scores = self.backend.evaluate_personal(self.broadcast(len(ids)), tasks, request)
        for i in ids:
            if any(np.isnan(value) for value in scores[i].values()):
                raise Diverged(s.round, i, "the personal model's outputs are not numbers")
        return scores

    def list_tested(self, own: bool) -> list[int]:
        """Return every client that has samples and, with `own`, test samples of its own."""
        tests, tested = self.problem.split.test, self.problem.split.train.sizes > 0
        if own and tests is not None:
            tested &= tests.sizes > 0
        return [int(i) for i in np.flatnonzero(tested)]
