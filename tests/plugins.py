"""Algorithms that hurt themselves, for tests: chosen in a configuration as `tests.plugins:Name`."""

import contextlib
import os
import signal
from pathlib import Path

import torch

from fedray.algorithms import ALGORITHMS
from fedray.algorithms.base import Algorithm, Client, Sum


class _DiesOnce:
    """SIGKILLs its own process after a client's training, once, when the file `marker` exists (and removes it)."""

    marker: str

    def upload(self, c: Client) -> dict[str, Sum]:
        with contextlib.suppress(OSError):
            Path(self.marker).unlink()  # it succeeds in one process only, and raises IsADirectoryError for ""
            os.kill(os.getpid(), signal.SIGKILL)
        return super().upload(c)  # type: ignore[misc,no-any-return]


def dying(kind: type[Algorithm]) -> type[Algorithm]:
    """The algorithm, with the death above built in and the option `marker` added."""
    return type(f"Dying{kind.__name__}", (_DiesOnce, kind),
                {"__annotations__": {"marker": str}, "marker": "", "__module__": __name__})


globals().update({f"dying_{name}": dying(kind) for name, kind in ALGORITHMS.items()})


class NotANumber(Algorithm):
    """Its direction is NaN on clients with an odd number of samples, from the third round on (lr below 0.1 x 0.9²)."""

    name = "not_a_number"

    def direction(self, c: Client) -> torch.Tensor:
        return c.grad(c.theta) * (float("nan") if c.samples % 2 and c.lr < 0.082 else 1.0)


class Slow(Algorithm):
    """FedAvg with a nap in every client, so that a test can interrupt it."""

    name = "slow"
    nap: float = 0.05

    def begin(self, c: Client) -> None:
        import time

        time.sleep(self.nap)


class Raises(Algorithm):
    """A user's own mistake."""

    name = "raises"

    def direction(self, c: Client) -> torch.Tensor:
        raise ZeroDivisionError("on purpose")
