"""Every random draw of a run, keyed by (seed, purpose, round, client).

Nothing draws from a shared stream, so a draw depends neither on the order in which clients are trained, nor on how
many processes train them, nor on a resume: there is no generator state to save.
"""

import hashlib

import numpy as np


def key(seed: int, purpose: str, round: int = 0, client: int = 0) -> int:
    """A 63-bit integer that identifies one use of randomness (first bytes of a SHA-256)."""
    text = f"{seed}/{purpose}/{round}/{client}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def generator(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.Generator:
    """NumPy generator for one use of randomness."""
    return np.random.Generator(np.random.PCG64(key(seed, purpose, round, client)))
