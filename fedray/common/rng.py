"""Every random draw of a run, keyed by (seed, purpose, round, client).

Nothing draws from a shared stream, so a draw depends neither on the order in which clients are trained, nor on how
many processes train them, nor on a resume: there is no generator state to save.
"""

import contextlib
import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

CPU = torch.device("cpu")


def make_key(seed: int, purpose: str, round: int = 0, client: int = 0) -> int:
    """Return a 63-bit integer that identifies one use of randomness (first bytes of a SHA-256)."""
    text = f"{seed}/{purpose}/{round}/{client}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def generator(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.Generator:
    """Return the NumPy generator for one use of randomness."""
    return np.random.Generator(np.random.PCG64(make_key(seed, purpose, round, client)))


def list_generators(device: torch.device) -> list[torch.Generator]:
    """Return the generators that torch draws from in a run on a device: the CPU's, and that of a CUDA device."""
    if device.type != "cuda":
        return [torch.default_generator]
    index = torch.cuda.current_device() if device.index is None else device.index
    return [torch.default_generator, torch.cuda.default_generators[index]]


Draws = list[tuple[Callable[[], Any], Callable[[Any], Any]]]


def list_draws(device: torch.device, everything: bool) -> Draws:
    """Return how to read and set the state of each generator that a block keys (`seed_torch`, `seed_everything`)."""
    draws: Draws = [(used.get_state, used.set_state) for used in list_generators(device)]
    if everything:
        draws += [(random.getstate, random.setstate), (np.random.get_state, np.random.set_state)]
    return draws


def seed_torch(seed: int, purpose: str, round: int = 0, client: int = 0, device: torch.device = CPU) -> "TorchStream":
    """Let torch draw from one keyed stream within a block (the CPU's generator, and that of a CUDA `device`).

    Afterwards the global generators are as before. torch.random.fork_rng and torch.manual_seed would do the same, but
    on a machine without a GPU they record a traceback at each call, in case CUDA starts later, which takes longer than
    training a small client.
    """
    return TorchStream(make_key(seed, purpose, round, client), list_generators(device))


@contextlib.contextmanager
def seed_everything(
    seed: int, purpose: str, round: int = 0, client: int = 0, device: torch.device = CPU
) -> Iterator[None]:
    """As `seed_torch`, for NumPy's and Python's global generators too, which only code of a user's own draws from.

    It takes a tenth of a millisecond, as long as a gradient of a tiny model.
    """
    key, kept, of_numpy = make_key(seed, purpose, round, client), random.getstate(), np.random.get_state()
    random.seed(key)
    np.random.seed([key & 0xFFFFFFFF, key >> 32])
    try:
        with seed_torch(seed, purpose, round, client, device):
            yield
    finally:
        random.setstate(kept)
        np.random.set_state(of_numpy)


def key_draws(
    everything: bool, seed: int, purpose: str, round: int = 0, client: int = 0, device: torch.device = CPU
) -> contextlib.AbstractContextManager[None]:
    """Key the draws of hooks within a block, with `everything` those of NumPy and Python, too."""
    return (seed_everything if everything else seed_torch)(seed, purpose, round, client, device)


class TorchStream:
    """A block in which generators are seeded (`seed_torch`)."""

    def __init__(self, key: int, generators: Sequence[torch.Generator]) -> None:
        self._key, self._generators = key, generators

    def __enter__(self) -> None:
        self._kept = [used.get_state() for used in self._generators]
        for used in self._generators:
            used.manual_seed(self._key)

    def __exit__(self, *_: object) -> None:
        for used, state in zip(self._generators, self._kept, strict=True):
            used.set_state(state)
