"""A model tried out before it trains, on one sample and on two; what only gives other numbers is refused or told."""

import contextlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedray.common.errors import UserError, format_count, warn_once
from fedray.common.explain import explain_error
from fedray.models.lora import refuse_unused_adapters
from fedray.models.network import Network
from fedray.models.parts import DECLARE, OF_TORCH, find_head


def try_out(network: Network, batches: Sequence[Tensor], classes: int, name: str, how: str) -> None:
    """Make a forward pass on each batch, of one sample and of two, and judge what comes out.

    Raises UserError, which begins with `name`, unless it gives logits for all classes of the data and leaves the model
    as it is. how: of what precision, for the message of a model that does not take the inputs.
    """
    network.train(False)
    unseen, head, shapes = _find_unseen(network.module), find_head(network.module), list[Any]()
    hook = head[1].register_forward_hook(lambda layer, inputs, y: shapes.append(getattr(y, "shape", None)))
    try:
        with (
            torch.no_grad(),
            refuse_unused_adapters(network.module),
            network.keep_buffers(),
            _find_unlisted(network.module) as unlisted,
        ):
            try:
                outputs = [network(x).logits for x in batches]
            except UserError:  # one sample alone has no statistics (`norm: batch_untracked`); another slip comes again
                outputs = [network(x).logits for x in batches[1:]]
    except torch.OutOfMemoryError:  # of a GPU: a process has fewer lanes then, or none
        raise
    except RuntimeError as error:
        explain_error(error, name)
        reason, shape = str(error).splitlines()[0], tuple(batches[0].shape[1:])
        raise UserError(f"{name} does not take inputs of shape {shape}{how}: {reason}") from None
    finally:
        hook.remove()
    if not torch.equal(network.theta.view(torch.int32), network.initial.view(torch.int32)):
        raise UserError(f"{name} changes its parameters in forward(), which no step would keep; compute with a copy")
    after = _find_unseen(network.module)
    for path in (path for path, one in unseen.items() if after.get(path) is one):  # a pass makes others anew
        raise UserError(
            f"{name}: {path} has a gradient and is no nn.Parameter, so nothing would train or send it; make it one, "
            "and what is computed from it in forward()"
        )
    if unlisted:
        raise UserError(
            f"{name} calls {unlisted[0]}, which is not among its modules, so nothing would train or send it; hold it "
            "as an attribute, in an nn.ModuleList or an nn.ModuleDict"
        )
    _judge_outputs(outputs, classes, name)
    declared = isinstance(getattr(type(network.module), "head", None), str)
    if not declared and shapes and shapes[-1] != outputs[-1].shape:
        warn_once(f"{name}: its outputs are not of the shape of those of its head, {head[0]}; {DECLARE}")


def _judge_outputs(outputs: Sequence[Tensor], classes: int, name: str) -> None:
    """Refuse what are no logits of one sample and of two, or of two; tell of probabilities and of samples that are
    mixed.
    """
    for n, logits in enumerate(outputs, 3 - len(outputs)):
        if logits.ndim != 2 or len(logits) != n or logits.shape[1] < classes:
            given = f"outputs of shape {tuple(logits.shape)} for {format_count(n, 'sample')}"
            raise UserError(f"{name} gives {given}, the data have {classes} classes")
        if logits.min() >= 0 and (logits.sum(1) - 1).abs().max() < 1e-5:
            warn_once(
                f"{name}.forward gives probabilities, which sum to 1; the loss applies a softmax itself, so leave "
                "yours out"
            )
    if not torch.allclose(outputs[0][0], outputs[-1][0], rtol=1e-2, atol=1e-3, equal_nan=True):
        warn_once(
            f"{name} gives a sample other outputs beside another one than alone when it is tested: it mixes the "
            "samples of a batch (nn.LSTM without batch_first, BatchNorm without running statistics?) or draws"
        )


def _find_unseen(module: nn.Module) -> dict[str, Tensor]:
    """Return, by path, the tensors that a model holds with a gradient though they are no nn.Parameter of it."""
    known, found = {id(one) for one in module.parameters()}, dict[str, Tensor]()
    for path, layer in module.named_modules():
        for name, value in vars(layer).items() if not layer._forward_pre_hooks else ():  # a hook makes its weight anew
            for one in _iter_held(value) if name not in OF_TORCH else ():
                if isinstance(one, Tensor) and one.requires_grad and id(one) not in known:
                    found.setdefault(f"{path}.{name}" if path else name, one)
    return found


@contextlib.contextmanager
def _find_unlisted(module: nn.Module) -> Iterator[list[nn.Module]]:
    """Give the layers with trained parameters, or dropout, that a block calls and that are not among a model's."""
    listed, found = {*module.modules()}, list[nn.Module]()

    def note(layer: nn.Module, _: Any) -> None:
        counts = isinstance(layer, nn.Dropout) or any(p.requires_grad for p in layer.parameters(recurse=False))
        if counts and layer not in listed:
            found.append(layer)

    hook = nn.modules.module.register_module_forward_pre_hook(note)
    try:
        yield found
    finally:
        hook.remove()


def _iter_held(value: Any) -> Iterator[Any]:
    """Yield an attribute's value, or what is in it if it is a collection, however deep."""
    if isinstance(value, Mapping | list | tuple | set | deque):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _iter_held(one)
    else:
        yield value
