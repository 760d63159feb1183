"""Every random draw of a run, keyed by (seed, purpose, round, client).

Nothing draws from a shared stream, so a draw depends neither on the order in which clients are trained, nor on how
many processes train them, nor on a resume: there is no generator state to save.
"""

import contextlib
import hashlib
from collections.abc import Iterator

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


@contextlib.contextmanager
def seed_torch(seed: int, purpose: str, round: int = 0, client: int = 0, device: torch.device = CPU) -> Iterator[None]:
    """Let torch draw from one keyed stream within a block (the CPU's generator, and that of a CUDA `device`).

    Afterwards the global generators are as before. torch.random.fork_rng and torch.manual_seed would do the same, but
    on a machine without a GPU they record a traceback at each call, in case CUDA starts later, which takes longer than
    training a small client.
    """
    generators = [torch.default_generator]
    if device.type == "cuda":
        generators.append(
            torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
        )
    kept = [used.get_state() for used in generators]
    for used in generators:
        used.manual_seed(make_key(seed, purpose, round, client))
    try:
        yield
    finally:
        for used, state in zip(generators, kept, strict=True):
            used.set_state(state)
