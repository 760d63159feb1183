"""Dotted keys of configurations: `training.lr`, `algorithm.rho`."""

from collections.abc import Mapping
from typing import Any

from fedray.common.errors import UserError, truncate_repr

COMPONENTS = ("data", "partition", "model", "algorithm")
"""Sections that a grid replaces whole, since their other keys belong to the name; other sections are merged."""


def with_key(config: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Return a copy with one dotted key set. A mapping replaces a component section and is merged into any other."""
    head, _, rest = key.partition(".")
    held = config.get(head)
    if rest:
        if isinstance(held, str) and head in COMPONENTS:
            held = {"name": held}
        if held is not None and not isinstance(held, Mapping):
            raise UserError(f"{key}: {head} holds {truncate_repr(held)}, which has no keys")
        return {**config, head: with_key(held or {}, rest, value)}
    if isinstance(value, Mapping) and isinstance(held, Mapping) and head not in COMPONENTS:
        return {**config, head: apply_draw(held, value)}
    return {**config, key: value}


def list_leaves(key: str, value: Any) -> list[str]:
    """Return the dotted keys that one setting gives values: `algorithm: {name: fedsam, rho: 0.1}` gives two."""
    if isinstance(value, Mapping) and value:
        return [leaf for inner, one in value.items() for leaf in list_leaves(f"{key}.{inner}", one)]
    return [f"{key}.name" if key in COMPONENTS else key]


def apply_draw(config: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy with several dotted keys set, in their order: the values of a draw."""
    result = dict(config)
    for key, value in values.items():
        result = with_key(result, key, value)
    return result
