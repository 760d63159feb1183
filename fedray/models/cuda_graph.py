"""Gradients recorded and replayed as CUDA graphs. No Ray in here."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fedray.common.errors import UserError, join_lines

MAX_RECORDINGS = 8
"""Maximum number of recordings of a run. Each keeps buffers for inputs and outputs; further functions run eagerly."""
WARM = 2
"""Eager calls with the same shapes before a function is recorded; libraries are set up by then."""

Function = Callable[..., tuple[Tensor, ...]]
"""A function from tensors to tensors."""
Capture = Callable[[Function, Sequence[Tensor]], tuple[Callable[[], Any], Sequence[Tensor]]]
"""Records a function of static inputs; returns a replay function and the static outputs."""


def capture(function: Function, inputs: Sequence[Tensor]) -> tuple[Callable[[], Any], Sequence[Tensor]]:
    """Record a function as a CUDA graph. The outputs have values only after the first replay."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = function(*inputs)
    return graph.replay, outputs


class Recorder:
    """Replays functions of tensors as CUDA graphs: one launch instead of one per kernel.

    A step of a small model takes the GPU less time than Python needs to launch it. A function is recorded per name and
    shapes. It must compute with kernels alone (no value is read back), and everything else it reads or writes, such as
    buffers, must keep its address.
    """

    def __init__(self, capture: Capture = capture) -> None:
        self._capture = capture
        self._met: dict[object, int] = {}
        self._recorded: dict[object, tuple[list[Tensor], Callable[[], Any], Sequence[Tensor]]] = {}

    def __call__(self, name: str, function: Function, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return function(*inputs). No later call changes the results."""
        key = name, *((tuple(x.shape), x.dtype) for x in inputs)
        if key not in self._recorded:
            self._met[key] = self._met.get(key, 0) + 1
            if self._met[key] <= WARM or len(self._recorded) == MAX_RECORDINGS:
                return function(*inputs)
            static = [x.clone() for x in inputs]
            try:
                self._recorded[key] = static, *self._capture(function, static)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                raise UserError(
                    f"runtime.cuda_graph: the model cannot be recorded: {join_lines(error)}; set it to false"
                ) from None
        static, replay, outputs = self._recorded[key]
        for kept, x in zip(static, inputs, strict=True):
            kept.copy_(x)
        replay()
        return tuple(output.clone() for output in outputs)
