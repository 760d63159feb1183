"""Parts of a module: its head, its layers by type, what is frozen, and data that it holds as attributes."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedray.common.errors import UserError
from fedray.common.rng import read_generator
from fedray.common.vectors import digest_tensors

NORMALISATION = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
"""Module types of normalisation layers: batch and instance norms, GroupNorm, LayerNorm, RMSNorm."""
EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
"""Module types of embeddings."""
OF_TORCH = vars(nn.Module()).keys()
"""Attributes that every module has."""
DECLARE = 'declare head = "NAME" in the class, the submodule whose outputs are the logits'
"""Advice about another head than the last nn.Linear."""


def find_head(module: nn.Module) -> tuple[str, nn.Module]:
    """Return the head's name and module: what the class's `head` names, else the last nn.Linear, or UserError."""
    named = dict(module.named_modules())
    if isinstance(name := getattr(type(module), "head", None), str):
        if name not in named:
            raise UserError(f"model.name: {type(module).__name__}.head names {name!r}, which is not a submodule")
        return name, named[name]
    linears = [(name, m) for name, m in named.items() if isinstance(m, nn.Linear)]
    if not linears:
        raise UserError(f"model.name: {type(module).__name__} has no nn.Linear to be its head; {DECLARE}")
    return linears[-1]


def find_tied(module: nn.Module) -> tuple[str, ...]:
    """Return two names of a parameter that is in the head and in the body; empty if there is none."""
    head, names = f"{find_head(module)[0]}.", dict[int, list[str]]()
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    for same in names.values():
        inside = [name for name in same if name.startswith(head)]
        if inside and len(inside) < len(same):
            return next(name for name in same if name not in inside), inside[0]
    return ()


def find_parameters(module: nn.Module, kinds: tuple[type[nn.Module], ...]) -> frozenset[str]:
    """Return the names of the parameters of all layers of some types."""
    return frozenset(
        f"{path}.{name}" if path else name
        for path, layer in module.named_modules()
        if isinstance(layer, kinds)
        for name, _ in layer.named_parameters()
    )


def matches(name: str, pattern: str) -> bool:
    """Return True if a shell pattern matches the name of a parameter or layer, or of a module that it is in."""
    return any(fnmatchcase(path, pattern) for path in accumulate(name.split("."), lambda a, b: f"{a}.{b}"))


def freeze(module: nn.Module, patterns: Sequence[str]) -> None:
    """Exclude the parameters that `model.freeze` names from training. `body` is everything but the head.

    Raises UserError if a pattern names no parameter, or nothing is left to train.
    """
    named = dict(module.named_parameters(remove_duplicate=False))
    for pattern in patterns:
        if pattern in ("body", "head"):
            head = f"{find_head(module)[0]}."
            if tied := find_tied(module):
                raise UserError(f"model.freeze: found {pattern}; {tied[0]} of the body and {tied[1]} are one tensor")
            chosen = [name for name in named if name.startswith(head) == (pattern == "head")]
        else:
            chosen = [name for name in named if matches(name, pattern)]
        if not chosen:
            outer = ", ".join(dict.fromkeys(name.partition(".")[0] for name in named))
            raise UserError(f"model.freeze: {pattern!r} names no parameter; there are: body, head, {outer}")
        for name in chosen:
            named[name].requires_grad_(False)
    if patterns and not any(parameter.requires_grad for parameter in named.values()):
        raise UserError(f"model.freeze: found {', '.join(patterns)}; nothing is left to train")


def iter_statistics(module: nn.Module, frozen: bool = False) -> Iterator[tuple[str, nn.Module, Tensor]]:
    """Yield the path of each float buffer's layer, the layer and the buffer, in `module.buffers()` order.

    A layer is frozen if the nearest module around it that has parameters, or the layer itself, trains none of them;
    with `frozen` the buffers of these layers are yielded instead of the others. A buffer that holds infinities, such as
    a causal mask, is no statistic: it stays as the model made it.
    """
    trained = {"": True}
    seen: set[int] = set()
    for path, layer in module.named_modules():
        own = list(layer.parameters())
        trained[path] = any(p.requires_grad for p in own) if own else trained[path.rpartition(".")[0]]
        for buffer in layer.buffers(recurse=False):
            given = buffer.is_floating_point() and id(buffer) not in seen
            if given and trained[path] != frozen and (frozen or bool(buffer.isfinite().all())):
                seen.add(id(buffer))
                yield path, layer, buffer


def iter_attributes(module: nn.Module) -> Iterator[tuple[str, Any, str]]:
    """Yield the data that modules hold as plain attributes: name, value, and a text, which changes with the data."""
    for path, layer in module.named_modules():
        for name, value in vars(layer).items():
            if name not in OF_TORCH and (text := _describe(value)):
                yield f"{path}.{name}" if path else name, value, text


def _describe(value: Any) -> str:
    """Return a text of data; empty for anything else, and for parameters and what a pass keeps with its gradient."""
    if isinstance(value, bool | int | float | complex | str | np.generic):
        return repr(value)
    if isinstance(value, Tensor):
        is_data = value.layout is torch.strided and not (value.is_meta or value.requires_grad)
        return digest_tensors({"": value}) if is_data and not isinstance(value, nn.Parameter) else ""
    if isinstance(value, np.ndarray):
        return "" if value.dtype.hasobject else f"{value.dtype}{value.shape}{value.tobytes().hex()}"
    if isinstance(value, list | tuple | deque):
        return repr([_describe(entry) for entry in value])
    if isinstance(value, Mapping):
        return repr([(repr(key), _describe(entry)) for key, entry in value.items()])
    return read_generator(value)
