"""Lanes: clients of a process that train in turn, some steps at a time, each on a GPU's stream with its own network.

While one lane's kernels run, Python launches the next lane's. Each client has the kernels and the draws that it has
alone, so no bit depends on the number of lanes.

A tensor may be read on another stream than the one whose memory it is in: it is marked there (`mark_read`), so that
PyTorch reuses its memory only after that. A lane begins a round after what the calling stream has launched, and the
calling stream reads a client's results after the lane's event. On a CPU there are no streams, and the rest is the same.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import torch

from fedray.algorithms.base import PerClient, Sum
from fedray.client import LocalClient
from fedray.common.errors import warn_once
from fedray.common.rng import keep_draws
from fedray.common.vectors import mark_read
from fedray.engine.messages import Broadcast, ClientTask
from fedray.engine.training.batches import Drawn
from fedray.engine.training.local_training import LocalTrainer, Turns
from fedray.engine.training.stack import ClientResult
from fedray.models.network import Network

MOST = 5
"""Lanes with `runtime.lanes: auto`: with LeNet on an H200 ten are 4 % faster than five."""
SPARE = 0.8
"""Part of the free memory that lanes may take with `auto`."""
TURN = 8
"""Steps of a lane's turn: changing the lane (its draws) takes as long as a step of a small model's launches."""
Given = tuple[ClientTask, Drawn | None]
Place = Callable[[ClientTask], ClientTask]


@dataclass(eq=False)
class Lane:
    """A stream with a network of its own, and the client that trains there, the round's `number`-th.

    `given` is the client with its batches, `result` that of its training, once it is done.
    """

    network: Network
    number: int = field(init=False)
    given: Given = field(init=False)
    result: ClientResult | None = None
    _steps: Turns[tuple[LocalClient, dict[str, Sum | PerClient]]] = field(init=False)
    _draws: list[object] = field(default_factory=list)
    _own_code: bool = False
    _trainers: tuple[LocalTrainer, LocalTrainer] | None = None

    @property
    def stream(self) -> "torch.cuda.Stream | None":
        """The one on which its network's graphs are captured; None on a CPU."""
        return None if self.network.recorder is None else self.network.recorder.stream

    def start(self, broadcast: Broadcast) -> None:
        """Begin a round after all that the calling stream has launched."""
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream())
        with self.use():
            mark_read([broadcast.theta, broadcast.buffers, *broadcast.message.values(), self.network.initial])

    def begin(self, number: int, given: Given, trainer: LocalTrainer, broadcast: Broadcast, place: Place) -> None:
        """Take a client, which `place` gives its state on the device at its first step."""
        self.number, self.given, self.result, self._draws = number, given, None, []
        if self._trainers is None or self._trainers[0] is not trainer:  # a trainer keeps masks on the device
            self._trainers = trainer, replace(trainer, network=self.network)
        own, self._own_code = self._trainers[1], trainer.population.own_code
        self._steps = _iter_steps(own, broadcast, given, place)

    def advance(self) -> bool:
        """Make the client's next steps with the lane's draws; return True once it has made all."""
        with self.use(), self._resume_draws():
            try:
                for _ in range(TURN):
                    next(self._steps)
            except StopIteration as done:
                c, uploads = done.value
                self.result = ClientResult([self.given[0]], c.loss, [c.steps], uploads, c.state)
        return self.result is not None

    def hand_over(self) -> ClientResult:
        """Return the result to the calling stream, which waits for the lane's work so far."""
        result, self.result = self.result, None
        assert result is not None  # noqa: S101 (`advance` has returned True)
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
        mark_read([result.loss, *(upload.vector for upload in result.uploads.values()), *result.state.values()])
        return result

    def close(self) -> None:
        """Leave a client in the middle of its training, and wait for what it has launched."""
        self._steps.close()
        if self.stream is not None:
            self.stream.synchronize()

    def use(self) -> contextlib.AbstractContextManager[object]:
        """Launch on the lane's stream within a block."""
        return contextlib.nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    @contextlib.contextmanager
    def _resume_draws(self) -> Iterator[None]:
        """Let all generators go on where this lane has stopped; afterwards they are as before."""
        with keep_draws(self._own_code, self.network.theta.device) as draws:
            for (_, put, _), state in zip(draws, self._draws, strict=bool(self._draws)):  # none before its first turn
                put(state)
            try:
                yield
            finally:
                self._draws = [read() for read, *_ in draws]


class Lanes:
    """The lanes of a process: the first has its network, `build` builds another lane's.

    There are as many as are wanted; with None up to MOST, as many as the memory allows that the first client leaves.
    `count_memory` returns the bytes that this process holds of its GPU, and those that it may still take; without it
    memory is no limit.
    """

    def __init__(
        self,
        network: Network,
        build: Callable[[], Network],
        wanted: int | None,
        count_memory: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        self._build, self._count_memory = build, count_memory
        self._measures = wanted is None and count_memory is not None
        self._held = 0 if count_memory is None else count_memory()[0]
        self.wanted = MOST if wanted is None else wanted
        self.lanes = [Lane(network)]

    def train(
        self,
        trainer: LocalTrainer,
        broadcast: Broadcast,
        given: Iterable[Given],
        place: Place,
        explain: Callable[[Exception, ClientTask], None],
    ) -> Iterator[ClientResult]:
        """Train clients, and yield their results in the order in which they are given.

        If the memory of a GPU does not hold them side by side, half as many go on, and those in training begin again.
        Clients and batches are taken on the stream of the lane that trains them, where `place` gives a client its state
        on the device; `explain` raises the error that a user is to see.
        """
        left, again, busy = enumerate(given), list[tuple[int, Given]](), list[Lane]()
        results, sent = dict[int, ClientResult](), 0
        started = set[Lane]()
        try:
            while True:
                self._open(measures=bool(sent or results))
                for lane in [lane for lane in self.lanes if lane not in busy]:
                    if lane not in started:
                        lane.start(broadcast)
                        started.add(lane)
                    with lane.use():
                        following = again.pop(0) if again else next(left, None)
                    if following is None:
                        break
                    lane.begin(*following, trainer, broadcast, place)
                    busy.append(lane)
                if not busy:
                    return
                try:
                    for lane in list(busy):
                        if lane.advance():
                            busy.remove(lane)
                            results[lane.number] = lane.hand_over()
                except (MemoryError, RuntimeError) as error:
                    if len(self.lanes) == 1 or not isinstance(error, torch.OutOfMemoryError):
                        explain(error, lane.given[0])
                        raise
                    again = sorted([*again, *((lane.number, lane.given) for lane in busy)], key=lambda each: each[0])
                    self._halve(busy)
                while sent in results:
                    yield results.pop(sent)
                    sent += 1
        finally:
            for lane in busy:
                lane.close()

    def _halve(self, busy: list[Lane]) -> None:
        """Go on with half as many lanes, which are free."""
        for lane in busy:
            lane.close()
        busy.clear()
        del self.lanes[len(self.lanes) // 2 :]
        torch.cuda.empty_cache()
        self._keep_open(2 * len(self.lanes))

    def _keep_open(self, tried: int) -> None:
        """Want no more lanes than there are, after so many did not fit."""
        self.wanted, self._measures = len(self.lanes), False
        warn_once(f"runtime.lanes: out of memory with {tried} or more lanes; now there are {self.wanted}")

    def _open(self, measures: bool) -> None:
        """Add the lanes that are missing. measures: whether a client has been trained, which tells its memory."""
        first = self.lanes[0]
        if self._measures and self._count_memory is not None:
            if not measures:
                return
            held, free = self._count_memory()
            self.wanted, self._measures = min(MOST, 1 + int(SPARE * free / max(held - self._held, 1))), False
        while len(self.lanes) < self.wanted:
            try:
                network = self._build()
            except torch.OutOfMemoryError:
                self._keep_open(len(self.lanes) + 1)
                return
            for name, tensor in network.frozen.items():
                tensor.data = first.network.frozen[name].data
            network.initial = first.network.initial
            self.lanes.append(Lane(network))


def _iter_steps(
    trainer: LocalTrainer, broadcast: Broadcast, given: Given, place: Place
) -> Turns[tuple[LocalClient, dict[str, Sum | PerClient]]]:
    task, drawn = given
    return (yield from trainer.iter_steps(broadcast, place(task), drawn=drawn))
