"""Stands in for CUDA's graphs on a CPU: a recording is the function itself, a replay calls it on the static tensors. So
a result that a later replay overwrites, an input that was forgotten, and a value that a loss keeps from the time of its
recording show as other bits. As with CUDA's, a number on another device is an argument of a kernel: its value at the
recording. `Elsewhere` is a tensor of such a device."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fedray.models.network import Network
from fedray.models.recorded import Compute, Recorder, _Entry


class Called:
    """A graph that calls a function. Attributes: `replays`, by all graphs."""

    replays = 0

    def record(self, compute: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        self._compute = compute
        self._results = tuple(result.clone() for result in compute())
        return self._results

    def replay(self) -> None:
        Called.replays += 1
        for result, new in zip(self._results, self._compute(), strict=True):
            result.copy_(new)


class Elsewhere(Tensor):
    """A tensor on another device, as it says itself; results are on the CPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    device = torch.device("meta")  # type: ignore[assignment]

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.as_subclass(Tensor).clone().to(*args, **kwargs)


class Freezing(Recorder):
    """Records numbers of another device as values."""

    def _record(self, entry: _Entry, compute: Compute, given: Sequence[Tensor]) -> None:
        values = {k: t.to("cpu") for k, t in enumerate(given) if t.ndim == 0 and isinstance(t, Elsewhere)}
        own = [values.get(k, t) for k, t in enumerate(given)]
        super()._record(entry, lambda *held: compute(*(values.get(k, t) for k, t in enumerate(held))), own)


def record_calls(network: Network) -> Recorder:
    """Let a network on the CPU replay functions."""
    network.recorder = Freezing(network, Called)
    return network.recorder
