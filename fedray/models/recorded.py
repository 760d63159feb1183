"""Computations of a network that are recorded once and launched again: CUDA graphs of gradients and predictions.

An eager gradient of a small model takes ten times as long to launch as to compute. A graph launches it at once, with
the same kernels on the same numbers, so no bit changes: that is compared twice before a graph is trusted.

A replay repeats what it saw. What Python does in a forward pass or in a loss happens at the recording alone, so a
computation whose Python moves anything (an attribute of the model, a generator) is never recorded, and the values that
a method's loss reads from its method are part of what a recording is found by.
"""

import contextlib
import random
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MethodType
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from fedray.common.errors import warn_once
from fedray.common.rng import list_generators

if TYPE_CHECKING:
    from fedray.models.network import Network

WARM, RARE = 2, 8
"""Eager calls before the first shape of a computation is recorded, and before any other one, which may never return."""
PROOFS = 2
"""Replays that are compared with eager results."""
KEPT, KNOWN = 48, 2048
"""Recordings of a network at most, and shapes that it counts."""
PLAIN = (bool, int, float, complex, str, bytes, tuple, list, dict, Tensor, np.ndarray, np.generic)
Compute = Callable[..., tuple[Tensor, ...]]


@dataclass(eq=False)
class _Entry:
    """A computation with inputs of some shapes."""

    kind: Hashable
    calls: int = 0
    proofs: int = 0
    refused: bool = False
    graph: "CudaGraph | None" = None
    inputs: Sequence[Tensor] = ()
    results: tuple[Tensor, ...] = ()

    def replay(self, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return results that no later replay changes."""
        assert self.graph is not None  # noqa: S101 (only what is recorded is replayed)
        for own, tensor in zip(self.inputs, given, strict=True):
            own.copy_(tensor)
        self.graph.replay()
        return tuple(result.clone() for result in self.results)


@dataclass(eq=False)
class Recorder:
    """The recordings of a network: at most `recordings`, 0 once the device had no memory for another.

    `make_graph` returns an empty graph; `stream` is where graphs are captured, None on a CPU.
    """

    network: "Network"
    make_graph: "Callable[[], CudaGraph]"
    stream: Any = None
    recordings: int = KEPT
    _entries: dict[Hashable, _Entry] = field(default_factory=dict)
    _inputs: WeakValueDictionary[Hashable, Tensor] = field(default_factory=WeakValueDictionary)

    def run(self, kind: Hashable, compute: Compute, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return `compute(*given)`, from a recording if there is one.

        `kind` names the computation, with all values that it reads besides the inputs and the network; it writes
        nothing else.
        """
        key = kind, self.network.module.training, tuple((t.shape, t.stride(), t.dtype) for t in given)
        entry = self._entries.get(key)
        if entry is None:
            if len(self._entries) >= KNOWN:
                self._entries = {k: known for k, known in self._entries.items() if known.graph is not None}
            entry = self._entries[key] = _Entry(kind)
        entry.calls += 1
        if entry.proofs == PROOFS:
            return entry.replay(given)
        if entry.refused or (entry.graph is None and entry.calls > WARM and not self._pays(entry)):
            return compute(*given)
        return self._watch(entry, compute, given)

    def _pays(self, entry: _Entry) -> bool:
        """Return True if a computation comes back so often that it is to be recorded; the least used one may go."""
        held = [known for known in self._entries.values() if known.graph is not None]
        if entry.calls <= (RARE if any(known.kind == entry.kind for known in held) else WARM):
            return False
        if self.recordings and len(held) >= self.recordings:
            least = min(held, key=lambda known: known.calls)
            if least.calls >= entry.calls:
                return False
            least.graph, least.results, least.inputs, least.proofs = None, (), (), 0
        return self.recordings > 0

    def _watch(self, entry: _Entry, compute: Compute, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Compute eagerly and watch what Python does; then record, or compare what is recorded."""
        host, before = self._look(), self._copy_state()
        expected = compute(*given)
        if self._look() != host:
            return self._refuse(entry, expected, "Python changes something in it: an attribute, or a generator")
        if entry.calls <= WARM:
            return expected
        if entry.graph is not None and all(map(torch.equal, entry.inputs, given)):
            return expected  # it would prove nothing new
        after = self._copy_state()
        self._set_state(before)
        try:
            if entry.graph is None:
                self._record(entry, compute, given)
                self._set_state(before)
            found = entry.replay(given)
            if self._look() != host:
                reason = "Python changes something in it: an attribute, or a generator"
            else:
                same = map(have_same_bits, (*found, *self._copy_state()), (*expected, *after))
                reason = "" if all(same) else "a replay has other bits"
        except torch.OutOfMemoryError:
            self._entries.clear()
            self.recordings, reason = 0, "the GPU has no memory for it"
        except Exception as error:  # also of a user's module
            reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        self._set_state(after)
        if reason:
            return self._refuse(entry, expected, reason)
        entry.proofs += 1
        return expected

    def _record(self, entry: _Entry, compute: Compute, given: Sequence[Tensor]) -> None:
        held = []
        for place, tensor in enumerate(given):
            key = place, tensor.shape, tensor.stride(), tensor.dtype
            own = self._inputs.get(key)  # theta's is that of all recordings
            if own is None:
                own = self._inputs[key] = torch.empty_strided(
                    tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
                )
            own.copy_(tensor)
            held.append(own)
        graph = self.make_graph()
        entry.results = graph.record(lambda: compute(*held))
        entry.graph, entry.inputs = graph, held

    def _refuse(self, entry: _Entry, expected: tuple[Tensor, ...], reason: str) -> tuple[Tensor, ...]:
        entry.refused, entry.graph, entry.results, entry.inputs = True, None, (), ()
        what = entry.kind[0] if isinstance(entry.kind, tuple) else entry.kind
        warn_once(f"model: {what} runs without a CUDA graph, more slowly: {reason}")
        return expected

    def _copy_state(self) -> list[Tensor]:
        """Return copies of what a pass changes on the device: the generator, running statistics, counters."""
        generator = list_generators(self.network.theta.device)[-1]
        return [generator.get_state(), *self.network.keep()]

    def _set_state(self, copies: Sequence[Tensor]) -> None:
        list_generators(self.network.theta.device)[-1].set_state(copies[0])
        self.network.restore(copies[1:])

    def _look(self) -> object:
        """Return all values of the host that a pass may change without saying so."""
        of_host = list_generators(self.network.theta.device)[:-1]
        drawn = random.getstate(), freeze(np.random.get_state()), freeze(of_host)
        return drawn, [_freeze_module(module) for module in self.network.module.modules()]


class CudaGraph:
    """The kernels of a computation. A replay computes the same again from the same memory, into the same memory.

    It draws from a generator state of its own, set to the device's at each replay: a capture that fails spoils that
    state alone, and graphs of several streams do not share it. It is captured on a stream: graphs with one pool have
    one stream, and cuBLAS keeps a workspace for each. Its memory pool is shared with other graphs that never run at the
    same time, and replaced after a failure.
    """

    def __init__(self, stream: torch.cuda.Stream, pools: list[Any]) -> None:
        self._stream, self._pools = stream, pools
        self._graph = torch.cuda.CUDAGraph()
        self._generator = list_generators(stream.device)[-1]
        self._own = self._generator.clone_state()
        self._draws = True

    def record(self, compute: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Rehearse a computation on the stream, where it must not wait for the GPU, and capture it.

        Returns its results, which the first replay fills.
        """
        kept, current = self._generator.graphsafe_get_state(), torch.cuda.current_stream()
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                with _refuse_waiting():
                    compute()
                self._generator.graphsafe_set_state(self._own)
                results = self._capture(compute)
        finally:
            self._generator.graphsafe_set_state(kept)
            current.wait_stream(self._stream)
        return results

    def _capture(self, compute: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        pool = self._pools[0]
        try:
            self._graph.capture_begin(pool, capture_error_mode="thread_local")
            try:
                results = compute()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # the first error is the one to report
                    self._graph.capture_end()
                raise
            self._graph.capture_end()
        except BaseException:
            with contextlib.suppress(RuntimeError):
                self._graph.reset()
            with contextlib.suppress(RuntimeError):  # PyTorch 2.11 leaves its allocator in a failed capture
                torch._C._cuda_endAllocateToPool(self._stream.device_index, pool)
            self._pools[0] = torch.cuda.graph_pool_handle()
            raise
        return results

    def replay(self) -> None:
        """Compute the results anew."""
        if not self._draws:
            self._graph.replay()
            return
        before = self._generator.get_state()
        self._own.set_state(before)
        self._graph.replay()
        after = self._own.get_state()
        self._generator.set_state(after)
        self._draws = not torch.equal(before, after)


def record_on_cuda(network: "Network") -> Recorder:
    """Return a recorder whose graphs are captured on a stream of its own."""
    stream, pools = torch.cuda.Stream(), [torch.cuda.graph_pool_handle()]
    return Recorder(network, lambda: CudaGraph(stream, pools), stream)


@contextlib.contextmanager
def _refuse_waiting() -> Iterator[None]:
    """Raise RuntimeError if a block waits for the GPU, as `.item()` does: no graph can hold that."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it does not see every wait: a capture does
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def identify(loss: MethodType) -> Hashable:
    """Return what a method's loss depends on besides its arguments: its code, and values of its object and module."""
    code, owner, known = loss.__func__.__code__, loss.__self__, loss.__func__.__globals__
    read = (getattr(owner, name, known.get(name)) for name in code.co_names)
    plain = [value for value in read if isinstance(value, PLAIN)]
    return loss.__qualname__, code, freeze([vars(owner), getattr(owner, "__pydantic_private__", None), plain])


def freeze(value: object) -> Hashable:
    """Return something that is equal only as long as a value is; of an object that is not plain, which one it is."""
    if isinstance(value, Mapping):
        return tuple((key, freeze(each)) for key, each in value.items())
    if isinstance(value, (list, tuple, set, frozenset)):
        return tuple(map(freeze, value))
    if isinstance(value, Tensor):
        return id(value), value._version
    if isinstance(value, np.ndarray):
        return value.shape, value.tobytes()
    if isinstance(value, np.random.Generator):
        return str(value.bit_generator.state)
    if isinstance(value, (random.Random, torch.Generator)):
        state = value.getstate() if isinstance(value, random.Random) else value.get_state().numpy().tobytes()
        return id(value), state
    return value if isinstance(value, (bool, int, float, complex, str, bytes, np.generic)) else id(value)


def _freeze_module(module: torch.nn.Module) -> Hashable:
    """Return the values of a module's attributes; of parameters and buffers, which graphs change, which they are."""
    held = module._parameters | module._buffers
    plain = {name: value for name, value in vars(module).items() if name not in ("_parameters", "_buffers", "_modules")}
    return tuple(map(id, held.values())), freeze(plain)


def have_same_bits(ours: Tensor, theirs: Tensor) -> bool:
    """Return True if two tensors have the same bits; unlike for torch.equal, NaN equals NaN and 0 differs from -0."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return False
    return torch.equal(*(t.contiguous().reshape(-1).view(torch.uint8) for t in (ours, theirs)))
