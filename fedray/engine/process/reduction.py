"""Results of one process's share of a round: exact sums and checks, which are read once, when the share is done.

A check that read its result at once would make the process wait for the device at every vector of every client. Small
vectors are added up for several clients at a time: one by one, a tiny model's sums would take as long as its training.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedray.algorithms.base import PerClient, Sum
from fedray.common.vectors import Vectors, download
from fedray.engine.exact_sum import BLOCK, LIMIT, Accumulator, NotSummable, refuse_inexact, split
from fedray.engine.messages import ClientTask


@dataclass
class ClientResult:
    """What remains of a client after its training.

    Attributes:
        task: the client.
        loss: sum of its steps' losses.
        steps: number of its steps.
        uploads: as `LocalTrainer.train` returns them.
        state: its new state.
    """

    task: ClientTask
    loss: Tensor
    steps: int
    uploads: Mapping[str, Sum | PerClient]
    state: Vectors


@dataclass(eq=False)
class _Group:
    """Vectors with one name and shape.

    Attributes:
        what: their name in messages.
        scale: units of the sum in 1; 0 without a sum, for vectors that only have to be finite.
        shape: their shape.
        terms: number of vectors in the whole sum.
        factors: weight x scale of each.
        waiting: the last ones, not measured yet.
        extremes: of those before, float64 `(2, n)` each: the least and the largest entries, NaN if one is.
    """

    what: str
    scale: float
    shape: torch.Size
    terms: int
    factors: list[float] = field(default_factory=list)
    waiting: list[Tensor] = field(default_factory=list)
    extremes: list[Tensor] = field(default_factory=list)

    def measure(self, sums: Accumulator) -> None:
        """Note the extremes of the waiting vectors, and add them up; single numbers are added when they are read."""
        if not self.waiting:
            return
        waiting, self.waiting = self.waiting, []
        stack = waiting[0][None] if len(waiting) == 1 else torch.stack(waiting)
        rows = stack.reshape(len(waiting), -1)
        self.extremes.append(torch.stack([rows.amin(1), rows.amax(1)]).double())
        if self.scale and self.shape.numel() > 1:
            sums.add_rows(self.what, stack, self.factors[-len(waiting) :])


class Reduction:
    """Adds vectors up on the device where they are, and notes what must hold for them.

    Nothing is read back from the device before `settle` or `finish`. The sums are valid only if no client is refused.
    """

    def __init__(self) -> None:
        self._sums = Accumulator()
        self._groups: dict[tuple[object, ...], _Group] = {}
        self._notes: list[tuple[int, _Group, int]] = []
        self._totals: dict[str, tuple[torch.Size, int]] = {}

    def add_client(self, result: ClientResult, cohort: int) -> Vectors:
        """Add up what a client uploads, and note what must be finite, in the order in which it is said.

        Args:
            result: the client.
            cohort: number of clients in the whole sum.

        Returns:
            The uploads that are not summed, on the device.
        """
        client, weight = result.task.client, result.task.weight
        each = Vectors({name: sent.vector for name, sent in result.uploads.items() if isinstance(sent, PerClient)})
        self.check(client, "the training loss", result.loss)
        for name, vector in each.items():
            self.check(client, name, vector)
        self.add(client, "train_loss", result.loss / result.steps, weight, cohort)
        for name, sent in result.uploads.items():
            if isinstance(sent, Sum):
                self.add(client, name, sent.vector, sent.weight, cohort, sent.wide)
        for name, vector in result.state.items():
            self.check(client, f"its state {name}", vector)
        return each

    def check(self, client: int, what: str, vector: Tensor) -> None:
        """Note that a vector must be finite. what: its name in the message."""
        if vector.numel():
            self._note(client, what, vector, 0.0, 1, 0.0)

    def add(self, client: int, name: str, vector: Tensor, weight: float, terms: int, wide: bool = False) -> None:
        """Add weight x vector to a sum, and note that it must be finite and not too large, as `Accumulator.add`.

        Args:
            client: whose vector it is.
            name: name of the sum.
            vector: any shape.
            weight: factor of the vector.
            terms: number of vectors in the whole sum.
            wide: whether the sum is wide.
        """
        if not vector.numel():
            self._sums.add(name, vector, weight, terms, wide)
            return
        for part, each, times, scale in split(name, vector.detach(), weight, wide):
            self._note(client, part, each, times, terms, scale)

    def _note(self, client: int, what: str, vector: Tensor, weight: float, terms: int, scale: float) -> None:
        key = what, scale, vector.shape, vector.dtype
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(what, scale, vector.shape, terms)
        self._notes.append((client, group, len(group.factors)))
        group.factors.append(weight * scale)
        group.waiting.append(vector.detach())
        if len(group.waiting) * vector.numel() >= BLOCK:
            group.measure(self._sums)

    def settle(self) -> dict[int, str]:
        """Read what was noted since the last call, in one copy.

        Returns:
            client -> the first reason why its vectors cannot be used; empty if all can.
        """
        return self._judge(download(self._join_extremes()))

    def finish(self, also: Sequence[Tensor] = ()) -> tuple[dict[int, str], dict[str, Tensor], list[Tensor]]:
        """Settle, and fetch the sums; one wait for everything.

        Args:
            also: more tensors to fetch.

        Returns:
            As `settle`; the exact sums on the CPU, as `Accumulator` has them; and the tensors of `also` on the CPU.
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
        found = [part for group in self._groups.values() for part in group.extremes]
        return [torch.cat(found, 1)] if found else []

    def _judge(self, read: Sequence[Tensor]) -> dict[int, str]:
        notes, groups = self._notes, list(self._groups.values())
        self._notes, self._groups = [], {}
        if not read:
            return {}
        ends = np.cumsum([len(group.factors) for group in groups])
        values = dict(zip(groups, np.split(read[0].numpy(), ends[:-1], axis=1), strict=True))
        refused: dict[int, str] = {}
        if any(_is_refused(group, found) for group, found in values.items()):
            for client, group, place in notes:
                low, high = values[group][:, place].tolist()
                try:
                    refuse_inexact(group.what, max(-low, high), abs(group.factors[place]), group.terms, group.scale)
                except NotSummable as reason:
                    refused.setdefault(client, str(reason))
            return refused
        for group in groups:
            if group.scale and group.shape.numel() == 1:
                total = sum(map(round, (values[group][0] * group.factors).tolist()))
                self._totals[group.what] = group.shape, self._totals.get(group.what, (group.shape, 0))[1] + total
        return refused


def _is_refused(group: _Group, extremes: np.ndarray) -> bool:
    """Return True if `refuse_inexact` refuses any vector of a group. extremes: float64 `(2, n)`."""
    with np.errstate(invalid="ignore", over="ignore"):
        sizes = np.maximum(-extremes[0], extremes[1]) * np.abs(group.factors) * group.terms
    return not bool((sizes < LIMIT).all())
