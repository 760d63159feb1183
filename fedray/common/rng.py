"""Every random draw of a run, keyed by (seed, purpose, round, client).

Nothing draws from a shared stream, so a draw depends neither on the order in which clients are trained, nor on how
many processes train them, nor on a resume: there is no generator state to save.
"""

import hashlib
import pickle
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch

CPU = torch.device("cpu")
GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


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


Draws = list[tuple[Callable[[], Any], Callable[[Any], Any], Callable[[int], Any]]]


@cache
def list_draws(device: torch.device, everything: bool) -> Draws:
    """Return how to read, set and seed the state of each generator that `key_draws` keys."""
    draws: Draws = [(used.get_state, used.set_state, used.manual_seed) for used in list_generators(device)]
    if everything:
        draws += [
            (random.getstate, random.setstate, random.seed),
            (np.random.get_state, np.random.set_state, lambda key: np.random.seed([key & 0xFFFFFFFF, key >> 32])),
        ]
    return draws


def read_generator(value: object) -> str:
    """Return a text of a generator's state, which changes with each draw; empty for anything else."""
    if isinstance(value, torch.Generator):
        return hashlib.sha256(value.get_state().numpy().tobytes()).hexdigest()
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return hashlib.sha256(pickle.dumps(value.get_state())).hexdigest()
    return repr(value.getstate()) if isinstance(value, random.Random) else ""


@contextmanager
def key_draws(
    everything: bool, seed: int, purpose: str, round: int = 0, client: int = 0, device: torch.device = CPU
) -> Iterator[None]:
    """Let torch draw from one keyed stream within a block (the CPU's generator, and that of a CUDA `device`).

    With `everything` NumPy and Python do, too: only code of a user's own draws from their global generators, and it
    takes a tenth of a millisecond, as long as a gradient of a tiny model. Afterwards the generators are as before.

    torch.random.fork_rng and torch.manual_seed would do the same, but on a machine without a GPU they record a
    traceback at each call, in case CUDA starts later, which takes longer than training a small client.
    """
    key = make_key(seed, purpose, round, client)
    with keep_draws(everything, device) as draws:
        for _, _, reseed in draws:
            reseed(key)
        yield


@contextmanager
def keep_draws(everything: bool = True, device: torch.device = CPU) -> Iterator[Draws]:
    """Put the generators that `key_draws` keys back after a block, which gets them: what follows draws the same."""
    draws = list_draws(device, everything)
    kept = [read() for read, _, _ in draws]
    try:
        yield draws
    finally:
        for (_, put, _), state in zip(draws, kept, strict=True):
            put(state)
