"""Gradients of several models with the same layers at once, each with the bits that it has alone.

A stacked tensor has the models along its first dimension. `LAYERS` says for every type of layer what it computes on a
stack; a model can be stacked if all its layers are there. Every product has the operands of the product alone, in the
same order; whether the machine's kernels then give the same bits, the caller has to check.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax, nll_loss

SMALLEST = 400
"""Rows x columns x depth of a product; PyTorch computes smaller ones in a loop of its own if they are stacked."""
Back = Callable[[Tensor, bool], tuple[Tensor, list[Tensor]]]
"""Backward pass of a layer: maps the gradient by its outputs, and whether its inputs need one, to the gradient by its
inputs (if they need none, to anything) and those by its parameters `(S, *shape)`."""
Layer = Callable[[Any, Tensor, Iterator[Tensor]], tuple[Tensor, Back]]
"""Forward pass of a layer: maps the layer, its inputs `(S, n, ...)` and the parameters left to take to its outputs."""


class Unstackable(Exception):
    """Raised for a batch whose gradients would have other bits in a stack."""


def _linear(layer: nn.Linear, x: Tensor, parameters: Iterator[Tensor]) -> tuple[Tensor, Back]:
    weight, bias = next(parameters), next(parameters) if layer.bias is not None else None
    rows, columns = x.flatten(1, -2), weight.transpose(1, 2)
    if rows.shape[1] * weight[0].numel() < SMALLEST:
        raise Unstackable

    def back(g: Tensor, needed: bool) -> tuple[Tensor, list[Tensor]]:
        g = g.flatten(1, -2)
        by_x = torch.bmm(g, weight).view(x.shape) if needed else x
        by_weight = torch.bmm(g.transpose(1, 2), rows)
        return by_x, [by_weight] if bias is None else [by_weight, g.sum(1)]

    y = torch.bmm(rows, columns) if bias is None else torch.baddbmm(bias[:, None], rows, columns)
    return y.view(*x.shape[:-1], -1), back


def _embedding(layer: nn.Embedding, x: Tensor, parameters: Iterator[Tensor]) -> tuple[Tensor, Back]:
    weight, vocabulary = next(parameters), layer.num_embeddings
    place = x + torch.arange(0, len(x) * vocabulary, vocabulary, device=x.device).view(-1, *[1] * (x.ndim - 1))

    def back(g: Tensor, needed: bool) -> tuple[Tensor, list[Tensor]]:
        summed = torch.ops.aten.embedding_dense_backward(g, place, len(x) * vocabulary, -1, False)
        return g, [summed.view(weight.shape)]

    return weight.flatten(0, 1)[place], back


def _flatten(layer: nn.Flatten, x: Tensor, parameters: Iterator[Tensor]) -> tuple[Tensor, Back]:
    return x.flatten(2), lambda g, needed: (g.view(x.shape), [])


def _relu(layer: nn.ReLU, x: Tensor, parameters: Iterator[Tensor]) -> tuple[Tensor, Back]:
    y = torch.relu(x)
    return y, lambda g, needed: (torch.ops.aten.threshold_backward(g, y, 0) if needed else g, [])


def _elementwise(layer: nn.Module, x: Tensor, parameters: Iterator[Tensor]) -> tuple[Tensor, Back]:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        y = layer(x)
    return y.detach(), lambda g, needed: (torch.autograd.grad(y, x, g)[0], [])


ELEMENTWISE = (nn.Identity, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus)
LAYERS: dict[type[nn.Module], Layer] = {
    nn.Linear: _linear,
    nn.Embedding: _embedding,
    nn.Flatten: _flatten,
    nn.ReLU: _relu,
    **dict.fromkeys(ELEMENTWISE, _elementwise),
}
"""Type of a layer, not of its subclasses -> what it computes on a stack."""
OPTIONS: dict[type[nn.Module], dict[str, object]] = {
    nn.Flatten: {"start_dim": 1, "end_dim": -1},
    **{kind: {"inplace": False} for kind in (nn.LeakyReLU, nn.ELU, nn.SiLU)},
    nn.Embedding: {"padding_idx": None, "max_norm": None, "scale_grad_by_freq": False, "sparse": False},
}
"""Options that a layer must have for that."""


def list_layers(module: nn.Module) -> list[nn.Module] | None:
    """Return a model's layers in order of the forward pass, before fedray adds hooks; None if it cannot be stacked."""
    kind, hooks = type(module), ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    if "forward" in vars(module) or any(getattr(module, name) for name in hooks):
        return None
    if kind.forward is nn.Sequential.forward:
        layers: list[nn.Module] = []
        for part in module._modules.values():  # a layer may be there twice
            if part is None or (found := list_layers(part)) is None:
                return None
            layers += found
        return layers
    fits = all(getattr(module, option) == value for option, value in OPTIONS.get(kind, {}).items())
    return [module] if kind in LAYERS and fits else None


@torch.no_grad()
def compute_gradients(
    layers: Sequence[nn.Module], shapes: Sequence[tuple[int, ...]], theta: Tensor, x: Tensor, y: Tensor
) -> tuple[Tensor, Tensor]:
    """Return what `Network.compute_gradient` returns for each row: losses `(S,)` and gradients `(S, P)`.

    theta is `(S, P)`, x `(S, n, ...)`, y `(S, n)`; shapes are those of the parameters. Raises Unstackable if the bits
    would differ.
    """
    sizes = [math.prod(shape) for shape in shapes]
    parameters = [part.view(len(theta), *shape) for part, shape in zip(theta.split(sizes, 1), shapes, strict=True)]
    left, backs = iter(parameters), list[Back]()
    for layer in layers:
        x, back = LAYERS[type(layer)](layer, x, left)
        backs.append(back)
    scores = log_softmax(x, -1)
    loss = torch.stack([nll_loss(score, label) for score, label in zip(scores.unbind(), y.unbind(), strict=True)])
    at = torch.zeros_like(scores).scatter_(-1, y[..., None], -1 / y.shape[1])
    g: Tensor = torch.ops.aten._log_softmax_backward_data(at, scores, -1, scores.dtype)
    gradients: list[Tensor] = []
    first = next(k for k, layer in enumerate(layers) if next(layer.parameters(), None) is not None)
    for k in reversed(range(first, len(layers))):
        g, found = backs[k](g, k > first)
        gradients = found + gradients
    return loss, torch.cat([part.flatten(1) for part in gradients], 1)
