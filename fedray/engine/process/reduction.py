"""Results of one process's share of a round: exact sums and checks, which are read once, when the share is done.

A check that read its result at once would make the process wait for the device at every vector of every client. Small
vectors are added up for several clients at a time: one by one, a tiny model's sums would take as long as its training.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedray.algorithms.base import PerClient, Sum
from fedray.common.vectors import Vectors, download
from fedray.engine.exact_sum import BLOCK, LIMIT, SCALE, Accumulator, describe_inexact, split
from fedray.engine.guard import refuse_shapes, refuse_type
from fedray.engine.messages import ClientTask
from fedray.engine.training.stack import ClientResult, copy_rows

NOBODY = ClientTask(-1, 0.0, Vectors())
"""Stands for a client if a vector is no client's."""


@dataclass(eq=False)
class _Group:
    """Vectors with one name and shape, of `terms` in the whole sum.

    what: their name in messages. scale: units of the sum in 1; 0 without a sum, for vectors that only have to be
    finite. factors: weight x scale of each. waiting: the last ones, as rows, not measured yet, `held` in number.
    extremes: of those before, float64 `(2, n)` each: the least and the largest entries, NaN if one is.
    """

    what: str
    scale: float
    shape: torch.Size
    terms: int
    factors: list[float] = field(default_factory=list)
    waiting: list[Tensor] = field(default_factory=list)
    held: int = 0
    extremes: list[Tensor] = field(default_factory=list)

    def measure(self, sums: Accumulator) -> None:
        """Note the extremes of the waiting vectors, and add them up; single numbers are added when they are read."""
        if not self.waiting:
            return
        waiting, self.waiting, self.held = self.waiting, [], 0
        stack = waiting[0] if len(waiting) == 1 else torch.cat(waiting)
        rows = stack.reshape(len(stack), -1)
        self.extremes.append(torch.stack([rows.amin(1), rows.amax(1)]).double())
        if self.scale and self.shape.numel() > 1:
            sums.add_rows(self.what, stack, self.factors[-len(stack) :])


class Reduction:
    """Adds vectors up on their device, and notes what must hold for them.

    Nothing is read back from the device before `settle` or `finish`. The sums are valid only if no client is refused.
    """

    def __init__(self) -> None:
        self._sums = Accumulator()
        self._groups: dict[tuple[object, ...], _Group] = {}
        self._notes: list[tuple[Sequence[ClientTask], _Group, int]] = []
        self._totals: dict[str, tuple[torch.Size, int]] = {}
        self._kinds: dict[str, tuple[torch.Size, bool]] = {}

    def add(self, result: ClientResult, cohort: int) -> dict[int, Vectors]:
        """Add up what some clients upload, and note what must be finite, in the order of the messages.

        Returns client -> its uploads that are not summed, on the device; empty if there are none. cohort: clients in
        the whole sum.
        """
        each = Vectors({name: sent.vector for name, sent in result.uploads.items() if isinstance(sent, PerClient)})
        weights = [task.weight for task in result.tasks]
        self._check(result, "the training loss", result.loss)
        for name, vector in each.items():
            self._check(result, name, vector)
        self._add(result, "train_loss", result.average_loss(), weights, cohort)
        for name, sent in result.uploads.items():
            if isinstance(sent, Sum):  # a stack has one Sum for updates of different weights
                shape = result.get_rows(sent.vector).shape[1:]
                known, wide = self._kinds.setdefault(name, (shape, sent.wide))
                refuse_shapes(name, [known, shape], [wide, sent.wide])
                own = weights if name == "update" else [sent.weight] * len(weights)
                self._add(result, name, sent.vector, own, cohort, sent.wide)
        for name, vector in result.state.items():
            self._check(result, f"its state {name}", vector)
        if not each:
            return {}
        return {task.client: own for task, own in zip(result.tasks, copy_rows(each, len(weights)), strict=True)}

    def add_vector(self, name: str, vector: Tensor, weight: float, terms: int, wide: bool = False) -> None:
        """Add weight x vector, which is no client's, to a sum of `terms` vectors; `finish` refuses it as -1."""
        self._add(ClientResult([NOBODY], vector, [1], {}, Vectors()), name, vector, [weight], terms, wide)

    def _check(self, result: ClientResult, what: str, vector: Tensor) -> None:
        """Note that a vector must be finite. what: its name in messages. Raises UserError if it cannot be sent."""
        refuse_type(what, vector)
        if vector.numel():
            self._note(result, what, result.get_rows(vector), [0.0] * len(result.tasks), 1, 0.0)

    def _add(
        self, result: ClientResult, name: str, vector: Tensor, weights: Sequence[float], terms: int, wide: bool = False
    ) -> None:
        """Add weight x vector to a sum, and note that it must be finite and not too large.

        The vector may hold rows, one for each of the result's clients, with a weight each.
        """
        rows = result.get_rows(vector.detach())
        if not rows.numel():
            self._sums.add_unchecked(name, rows[0], 0.0)
            return
        if not wide:
            self._note(result, name, rows, weights, terms, SCALE)
            return
        for row, weight in enumerate(weights):  # what rounding leaves depends on the weight
            for part, each, times, scale in split(name, rows[row : row + 1], weight):
                self._note(result, part, each, [times], terms, scale, row)

    def _note(
        self,
        result: ClientResult,
        what: str,
        rows: Tensor,
        weights: Sequence[float],
        terms: int,
        scale: float,
        first: int = 0,
    ) -> None:
        key = what, scale, rows.shape[1:], rows.dtype
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(what, scale, rows.shape[1:], terms)
        self._notes.append((result.tasks[first : first + len(rows)], group, len(group.factors)))
        group.factors += [weight * scale for weight in weights]
        group.waiting.append(rows.detach())
        group.held += len(rows)
        if group.held * group.shape.numel() >= BLOCK:
            group.measure(self._sums)

    def settle(self) -> dict[int, str]:
        """Read what was noted since the last call, in one copy; return client -> the first reason why it is refused."""
        return self._judge(download(self._join_extremes()))

    def finish(self, also: Sequence[Tensor] = ()) -> tuple[dict[int, str], dict[str, Tensor], list[Tensor]]:
        """Settle, and fetch the sums and the tensors of `also`; one wait for everything.

        Returns what `settle` returns; the exact sums, as `Accumulator` has them; and the tensors, all on the CPU.
        """
        joined, sums = self._join_extremes(), self._sums.sums
        copies = download([*joined, *sums.values(), *also])
        refused = self._judge(copies[: len(joined)])
        fetched = dict(zip(sums, copies[len(joined) :], strict=False))
        fetched |= {name: torch.full(shape, n, dtype=torch.int64) for name, (shape, n) in self._totals.items()}
        return refused, fetched, copies[len(joined) + len(sums) :]

    def _join_extremes(self) -> list[Tensor]:
        """Measure what waits; return the extremes of all groups in one tensor, float64 `(2, n)`, if there are any."""
        for group in self._groups.values():
            group.measure(self._sums)
        parts = [part for group in self._groups.values() for part in group.extremes]
        return [torch.cat(parts, 1)] if parts else []

    def _judge(self, read: Sequence[Tensor]) -> dict[int, str]:
        notes, groups = self._notes, list(self._groups.values())
        self._notes, self._groups = [], {}
        if not read:
            return {}
        ends = np.cumsum([len(group.factors) for group in groups])
        values = dict(zip(groups, np.split(read[0].numpy(), ends[:-1], axis=1), strict=True))
        refused: dict[int, str] = {}
        if any(_is_refused(group, extremes) for group, extremes in values.items()):
            for tasks, group, first in notes:
                for place, task in enumerate(tasks, first):
                    (low, high), factor = values[group][:, place].tolist(), abs(group.factors[place])
                    if reason := describe_inexact(group.what, max(-low, high), factor, group.terms, group.scale):
                        refused.setdefault(task.client, reason)
            return refused
        for group in groups:
            if group.scale and group.shape.numel() == 1:
                total = sum(map(round, (values[group][0] * group.factors).tolist()))
                self._totals[group.what] = group.shape, self._totals.get(group.what, (group.shape, 0))[1] + total
        return refused


def _is_refused(group: _Group, extremes: np.ndarray) -> bool:
    """Return True if `describe_inexact` finds anything in a group. extremes: float64 `(2, n)`."""
    with np.errstate(invalid="ignore", over="ignore"):
        sizes = np.maximum(-extremes[0], extremes[1]) * np.abs(group.factors) * group.terms
    return not bool((sizes < LIMIT).all())
