"""Stands in for CUDA's graphs on a CPU: a recording is the function itself, a replay calls it on the static tensors. So
a result that a later replay overwrites, an input that was forgotten, and a value that a loss keeps from the time of its
recording show as other bits."""

from collections.abc import Callable

from torch import Tensor

from fedray.models.network import Network
from fedray.models.recorded import Recorder


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


def record_calls(network: Network) -> Recorder:
    """Let a network on the CPU replay functions."""
    network.recorder = Recorder(network, Called)
    return network.recorder
