"""All methods as parameters of a test: a few that reach every hook and declaration, the others marked slow."""

from typing import Any

import pytest

from fedray.algorithms import ALGORITHMS
from fedray.algorithms.base import Algorithm

DECLARED = (
    *("reads_taps", "reads_features", "perturbs_inputs", "shares", "keeps"),
    *("personal", "generic", "optimizer", "stacks"),
)
HOOKS = [name for name, value in vars(Algorithm).items() if not name.startswith("_") and callable(value)] + [
    name for name, value in vars(Algorithm).items() if isinstance(value, property)
]


def list_reached(method: type[Algorithm]) -> set[str]:
    """Return the hooks that a method has of its own, and its declarations with their values."""
    own = {hook for hook in HOOKS if getattr(method, hook) is not getattr(Algorithm, hook)}
    return own | {f"{name}={getattr(method, name)}" for name in DECLARED}


def choose_cover() -> list[str]:
    """Return few methods that together reach what all reach: the papers' own, then always the one that adds most."""
    reached = {name: list_reached(method) for name, method in sorted(ALGORITHMS.items())}
    chosen = ["fedgela", "fedsol", "fedtoga", "mofedsam"]
    left = set[str]().union(*reached.values()).difference(*(reached[name] for name in chosen))
    while left:
        best = max(reached, key=lambda name: len(reached[name] & left))
        chosen.append(best)
        left -= reached[best]
    return sorted(chosen)


COVER = choose_cover()
METHODS: list[Any] = [pytest.param(one, marks=() if one in COVER else pytest.mark.slow) for one in sorted(ALGORITHMS)]
"""For `pytest.mark.parametrize`; `make test-slow` runs them all."""
