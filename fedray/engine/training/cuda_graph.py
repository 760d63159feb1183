"""Steps recorded and replayed as CUDA graphs: one launch instead of one per kernel. No Ray in here."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from fedray.common.errors import join_lines
from fedray.common.rng import list_generators

log = logging.getLogger("fedray")

WARM = 2
"""Eager steps with the same shapes before a step is recorded; libraries are set up by then."""
CHECKED = 2
"""Replays of a recording whose bits are compared with the eager step's."""
KEPT = 8
"""Recordings with the same shapes that are kept; they differ in the numbers that the step reads."""
LEAST_REPLAYS = 8
"""Mean replays of a recording below which recording does not pay."""

Capture = Callable[[Callable[[], None]], Callable[[], Any]]
"""Records a function that reads and writes tensors in place; returns a function that replays it."""


class NotRecorded(RuntimeError):
    """Raised by a step that a recording could not repeat; the message says why."""


class Step(Protocol):
    """A step as a function of tensors."""

    @property
    def name(self) -> str:
        """Name of the method that takes it, for messages."""

    @property
    def fixed(self) -> Sequence[Tensor]:
        """Tensors that it changes in place, which never move, such as running statistics."""

    @property
    def numbers(self) -> Mapping[str, object]:
        """The numbers that the last `run` read, by name; a recording holds for these values only."""

    @property
    def passes(self) -> Mapping[str, int]:
        """Counts of the last `run`."""

    def list_vectors(self) -> dict[str, Tensor]:
        """Return the tensors that it may read, by name."""

    def run(self, vectors: Mapping[str, Tensor], recorded: bool) -> dict[str, Tensor]:
        """Take the step on other tensors; return those that it replaces and new ones. It writes only into `fixed`.

        Args:
            vectors: as `list_vectors` gives them.
            recorded: raise NotRecorded if a recording could not repeat the step.
        """

    def read(self, name: str) -> object:
        """Return the present value of one of `numbers`."""


@dataclass(eq=False)
class _Recording:
    """One recorded step: where it reads, what it writes over, what it adds, and what it depends on."""

    static: dict[str, Tensor]
    made: dict[str, Tensor]
    numbers: dict[str, object]
    passes: dict[str, int]
    replay: Callable[[], Any]
    unchecked: int = CHECKED
    replays: int = 0


class CudaCapture:
    """Records CUDA graphs, whose intermediate results share one pool of memory: no two of them are needed at once."""

    def __init__(self) -> None:
        self._pool: Any = None

    def __call__(self, function: Callable[[], None]) -> Callable[[], Any]:
        """Record a function; nothing is computed before the first replay."""
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            function()
        return graph.replay


class Recorder:
    """Replays steps as CUDA graphs.

    A step of a small model takes the GPU less time than Python needs to launch it. It is recorded per shapes of its
    tensors and per values of the numbers that it reads. The first replays are compared with the eager step, bit by bit.
    Steps that differ or cannot be recorded are taken eagerly from then on, and a warning says so once.
    """

    def __init__(self, capture: Capture | None = None) -> None:
        self._capture = capture or CudaCapture()
        self._static: dict[object, Tensor] = {}
        self._places: set[int] = set()
        self._met: dict[object, int] = {}
        self._recordings: dict[object, list[_Recording]] = {}
        self._used: dict[object, list[int]] = {}
        self._eager: set[object] = set()
        self._said: set[str] = set()

    @property
    def recordings(self) -> int:
        """Number of steps recorded so far."""
        return sum(made for made, _ in self._used.values())

    def take(self, kind: object, step: Step) -> tuple[dict[str, Tensor], Mapping[str, int]]:
        """Take a step.

        Args:
            kind: what the step depends on besides its tensors and numbers.
            step: the step.

        Returns:
            All its tensors afterwards, of which later steps overwrite those that `is_static` marks; and what it counts.
        """
        vectors = step.list_vectors()
        key = kind, tuple((name, v.shape, v.dtype) for name, v in vectors.items())
        found = None
        if key not in self._eager and not self._is_cold(key):
            found = next((one for one in self._recordings.get(key, ()) if _holds(one, step)), None)
            found = found or self._record(key, step, vectors)
        if found is None:
            return self.take_eagerly(step, vectors), step.passes
        if found.unchecked:
            return self._check(key, found, step, vectors), found.passes
        return self._replay(key, found, vectors), found.passes

    def take_eagerly(self, step: Step, vectors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Take a step from its tensors without a recording, and return all its tensors afterwards."""
        own = {name: v.clone() if self.is_static(v) else v for name, v in vectors.items()}
        return own | step.run(own, False)

    def is_static(self, tensor: Tensor) -> bool:
        """Return True for a tensor that later steps overwrite."""
        return id(tensor) in self._places

    def _is_cold(self, key: object) -> bool:
        self._met[key] = self._met.get(key, 0) + 1
        return self._met[key] <= WARM

    def _record(self, key: object, step: Step, vectors: Mapping[str, Tensor]) -> _Recording | None:
        """Record a step; None if that fails or does not pay."""
        known, used = self._recordings.setdefault(key, []), self._used.setdefault(key, [0, 0])
        if used[0] >= KEPT and used[1] < LEAST_REPLAYS * used[0]:
            numbers = ", ".join(
                name for name in known[-1].numbers if known[-1].numbers[name] != known[-2].numbers.get(name)
            )
            self._give_up(key, f"{step.name}: its steps read numbers that change too often to record them ({numbers})")
            return None
        static = self._load(vectors)
        made: dict[str, Tensor] = {}

        def function() -> None:
            changed = step.run(static, True)
            memory = {v.untyped_storage().data_ptr() for v in static.values()}
            found = {n: v.clone() if v.untyped_storage().data_ptr() in memory else v for n, v in changed.items()}
            made.update({n: v for n, v in found.items() if n not in static})
            for name in found.keys() & static.keys():
                static[name].copy_(found[name])

        kept = _Kept(step)
        try:
            replay = self._capture(function)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self._give_up(key, f"{step.name}: its steps cannot be recorded: {join_lines(error)}")
            return None
        finally:
            kept.restore()
        used[0] += 1
        known.append(_Recording(static, made, dict(step.numbers), dict(step.passes), replay))
        del known[:-KEPT]
        return known[-1]

    def _load(self, vectors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the static tensors of these names and shapes, with these values."""
        static = {}
        for name, v in vectors.items():
            place = self._static.get((name, v.shape, v.dtype))
            if place is None:
                place = self._static[name, v.shape, v.dtype] = v.clone()
                self._places.add(id(place))
            elif place is not v:
                place.copy_(v)
            static[name] = place
        return static

    def _replay(self, key: object, found: _Recording, vectors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        static = self._load(vectors)
        found.replay()
        self._used[key][1] += 1
        return static | {name: v.clone() for name, v in found.made.items()}

    def _check(self, key: object, found: _Recording, step: Step, vectors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Take the step eagerly, replay it, and compare."""
        before = _Kept(step)
        eager = self.take_eagerly(step, vectors)
        after = _Kept(step)
        before.restore()
        replayed = self._replay(key, found, vectors)
        equal = all(_has_bits(replayed[name], v) for name, v in eager.items()) and after.has_bits()
        after.restore()
        if equal:
            found.unchecked -= 1
            return replayed
        self._give_up(key, f"{step.name}: a recorded step has other bits than the eager one")
        return eager

    def _give_up(self, key: object, reason: str) -> None:
        self._eager.add(key)
        self._recordings.pop(key, None)
        if reason not in self._said:
            self._said.add(reason)
            log.warning("runtime.cuda_graph: %s; such steps run eagerly", reason)


class _Kept:
    """Side effects of a step: fixed tensors and torch's random streams."""

    def __init__(self, step: Step) -> None:
        self._fixed = [(tensor, tensor.clone()) for tensor in step.fixed]
        self._streams = [(one, one.get_state()) for one in list_generators(step.fixed[0].device)]

    def restore(self) -> None:
        """Put everything back."""
        for tensor, value in self._fixed:
            tensor.copy_(value)
        for stream, state in self._streams:
            stream.set_state(state)

    def has_bits(self) -> bool:
        """Return True if the fixed tensors are as they were."""
        return all(_has_bits(tensor, value) for tensor, value in self._fixed)


def _holds(recording: _Recording, step: Step) -> bool:
    return all(step.read(name) == value for name, value in recording.numbers.items())


def _has_bits(a: Tensor, b: Tensor) -> bool:
    """Return True if two tensors have the same bits, NaN included."""
    return torch.equal(*(v.contiguous().reshape(-1).view(torch.uint8) for v in (a, b)))
