"""A module whose parameters are views into one flat vector, and the layout that names its slices."""

import contextlib
import hashlib
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import MethodType

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedray.common.errors import Slip, UserError, warn_once
from fedray.common.vectors import bring, digest_tensors
from fedray.models.lora import find_matrices
from fedray.models.parts import (
    DECLARE,
    EMBEDDINGS,
    NORMALISATION,
    find_head,
    find_parameters,
    find_tied,
    iter_attributes,
    iter_statistics,
)
from fedray.models.recorded import Compute, Recorder, identify
from fedray.models.stacked import list_layers

PAIRS = {"all": "none", "head": "body", "norm": "not_norm", "lora_A": "not_lora_A", "lora_B": "not_lora_B"}
BESIDE = PAIRS | {other: part for part, other in PAIRS.items()}
"""Part of the model -> the complementary part."""
VIEWED = 1 << 16
"""Models with more parameters than this are views of the loaded theta; smaller ones hold a copy of it."""


def refuse_no_scalar(loss: object) -> None:
    """Raise Slip for a loss that is no tensor of one number."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        found = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"type {type(loss).__name__}"
        raise Slip(f"gives a loss of {found}; a scalar tensor is required, such as the mean over the samples")


@dataclass(frozen=True)
class Layout:
    """The slice of theta of each trained parameter; frozen parameters (without gradient) have none.

    Attributes:
        names: of the parameters, in `model.parameters()` order; tied parameters appear once.
        shapes: of the parameters, in the same order.
        heads: names of the head's parameters; everything else is the body.
        norms: names of the parameters of normalisation layers, by module type.
        own_features: True if the model's `features()` gives the features, which then need not be the input of the head.
        embeddings: names of the parameters of embeddings, by module type.
        lora_a, lora_b: names of the matrices of adapters (`fedray.models.lora`).
        tied: two names of a tensor that head and body share; empty if there is none.
        frozen_heads: names of the head's frozen parameters.
        sizes: number of entries of each parameter.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    heads: frozenset[str] = frozenset()
    own_features: bool = False
    norms: frozenset[str] = frozenset()
    embeddings: frozenset[str] = frozenset()
    lora_a: frozenset[str] = frozenset()
    lora_b: frozenset[str] = frozenset()
    tied: tuple[str, ...] = ()
    frozen_heads: frozenset[str] = frozenset()
    sizes: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(math.prod(shape) for shape in self.shapes))

    @property
    def size(self) -> int:
        """P: the length of theta."""
        return sum(self.sizes)

    def mask(self, belongs: Callable[[str], bool]) -> Tensor:
        """Return float32 `(P,)`: 1 on the parameters with these names, else 0."""
        marks = (torch.full((size,), float(belongs(name))) for name, size in zip(self.names, self.sizes, strict=True))
        return torch.cat([torch.zeros(0), *marks])  # running statistics may be none

    def name_part(self, part: str) -> frozenset[str]:
        """Return the names of the parameters of a part, as `part`."""
        every = frozenset(self.names)
        parts = {"all": every, "head": self.heads, "norm": self.norms, "lora_A": self.lora_a, "lora_B": self.lora_b}
        if part == "unbiased":
            ranks = {name: len(shape) for name, shape in zip(self.names, self.shapes, strict=True)}
            return frozenset(name for name in every if name not in self.heads or ranks[name] > 1)
        return parts[part] if part in parts else every - parts[BESIDE[part]]

    def part(self, part: str) -> Tensor:
        """Return float32 `(P,)`: 1 on the parameters of a part.

        Parts are all, none, body, head, unbiased (all but the head's bias), norm (normalisation layers), lora_A and
        lora_B (the matrices of adapters); the last three also with `not_`.
        """
        return self.mask(self.name_part(part).__contains__)

    def views(self, theta: Tensor) -> dict[str, Tensor]:
        """Return the slices of `theta (..., P)` in their own shapes `(..., *shape)`; views, not copies."""
        parts = torch.split(theta, list(self.sizes), dim=-1)
        return {
            name: part.view((*theta.shape[:-1], *shape))
            for name, part, shape in zip(self.names, parts, self.shapes, strict=True)
        }

    @cached_property
    def layers(self) -> dict[str, int]:
        """Layer -> number of its entries in theta, where they lie side by side, in order.

        A layer is the module that holds the parameters; one that the model itself holds is a layer of its own.
        """
        sizes = dict[str, int]()
        for name, size in zip(self.names, self.sizes, strict=True):
            layer = name.rpartition(".")[0] or name
            sizes[layer] = sizes.get(layer, 0) + size
        return sizes

    @cached_property
    def matrices(self) -> tuple[str, ...]:
        """Names of the parameters with two or more dimensions, in order."""
        return tuple(name for name, shape in zip(self.names, self.shapes, strict=True) if len(shape) > 1)


@dataclass(frozen=True)
class Output:
    """Result of a forward pass: logits `(n, classes)` and features `(n, d)`, the input of the head.

    taps: inner features `(n, d_l)`, layer by layer, averaged over positions; empty for a network without taps.
    """

    logits: Tensor
    features: Tensor
    taps: tuple[Tensor, ...] = ()


class Network:
    """A module laid out flat: `theta` (P,) and `buffers` (B,) are the storage of what a run changes.

    These are its trained parameters, and the float buffers of all layers but the frozen ones
    (`fedray.models.parts.iter_statistics`), which stay in evaluation mode. Parameters, gradients and results stay
    float32 with `bf16`. `taps` names the submodules (activations, as a rule) whose input every forward pass is to
    return; of one that is called more than once, as a residual block's ReLU is, the last call counts. Raises UserError
    without a linear head, without a parameter to train, or for the name of a tap that is no submodule's.

    Attributes:
        trained: the parameters that theta holds, in its order.
        frozen: the other parameters, and the float buffers of frozen layers, by name.
        layers: its layers, if such models can be stacked (`fedray.models.stacked`); otherwise None.
        recorder: computes gradients and predictions from CUDA graphs; None to compute them eagerly.
    """

    def __init__(
        self,
        module: nn.Module,
        device: torch.device | str = "cpu",
        taps: Sequence[str] = (),
        bf16: bool = False,
        channels_last: bool = False,
    ) -> None:
        layers = None if bf16 else list_layers(module)
        self.module = module.to(device)
        self._bf16, self._kind = bf16, f"model.name: {type(module).__name__}"
        for convolution in (m for m in module.modules() if bf16 and isinstance(m, nn.Conv2d)):
            convolution.__dict__["forward"] = partial(_convolve, convolution, convolution.forward)
        self._channels_last = channels_last and any(isinstance(m, nn.Conv2d) for m in module.modules())
        every = dict(module.named_parameters())
        named = {name: p for name, p in every.items() if p.requires_grad}
        if not named:
            raise UserError(f"{self._kind} has no parameter to train")
        statistics = {f"{path}.{k}": (layer, b) for k, (path, layer, b) in enumerate(iter_statistics(module))}
        moving = [buffer for _, buffer in statistics.values()]
        _refuse_numbers(module, named, moving)
        self._head_name, self.head = find_head(module)
        inside = {id(p) for p in self.head.parameters()}
        heads = frozenset(name for name, p in every.items() if id(p) in inside)
        own = getattr(module, "features", None)
        self._own: Callable[[Tensor], Tensor] | None = own if callable(own) and not isinstance(own, nn.Module) else None
        self.layout = Layout(
            tuple(named),
            tuple(tuple(p.shape) for p in named.values()),
            heads & named.keys(),
            self._own is not None,
            find_parameters(module, NORMALISATION) & named.keys(),
            find_parameters(module, EMBEDDINGS) & named.keys(),
            find_matrices(module, "lora_A") & named.keys(),
            find_matrices(module, "lora_B") & named.keys(),
            find_tied(module),
            heads - named.keys(),
        )
        self.trained: list[nn.Parameter] = list(named.values())
        held = [id(p) for layer in layers or () for p in layer.parameters()]
        self.layers = layers if held == list(map(id, self.trained)) else None
        self.frozen: dict[str, Tensor] = {name: p for name, p in every.items() if name not in named}
        attributes = list(iter_attributes(module))
        self._attributes: dict[str, str] | None = {name: text for name, _, text in attributes}
        self._arrays = sorted((name, text) for name, data, text in attributes if isinstance(data, Tensor | np.ndarray))
        self._still = []
        for path, layer, buffer in iter_statistics(module, frozen=True):
            self._still.append(layer)
            self.frozen[f"{path}.buffer {len(self._still)}"] = buffer
        chosen = {part: self.layout.name_part(part) for part in ("all", "head", "body", "norm", "not_norm")}
        self.parts = {part: [p for name, p in named.items() if name in names] for part, names in chosen.items()}
        self.theta = _flatten(self.trained)
        self.initial = self.theta.clone()
        self._sizes = list(self.layout.sizes)
        self._statistics = Layout(  # running statistics belong to the same part as the parameters of their layer
            tuple(statistics),
            tuple(tuple(buffer.shape) for buffer in moving),
            heads=frozenset(name for name in statistics if name.startswith(f"{self._head_name}.")),
            norms=frozenset(name for name, (layer, _) in statistics.items() if isinstance(layer, NORMALISATION)),
        )
        self._parts: dict[tuple[str, str], Tensor] = {}
        self.buffers = _flatten(moving) if moving else torch.zeros(0, device=device)
        self.initial_buffers = self.buffers.clone()
        self._counters = [(b, b.clone()) for b in module.buffers() if not b.is_floating_point()]
        self.recorder: Recorder | None = None
        self._features: Tensor | None = None
        self.head.register_forward_pre_hook(self._keep_features)
        self._own_features: Tensor | None = None
        if self._own is not None:
            module.__dict__["features"] = partial(self._keep_own, self._own)
        self._taps: dict[str, Tensor] = {}
        modules = dict(module.named_modules())
        for tap in taps:
            if tap not in modules:
                raise UserError(f"model.taps: {type(module).__name__} has no submodule {tap!r}")
            modules[tap].register_forward_pre_hook(partial(self._keep_tap, tap))
        self._tap_names = tuple(taps)
        self._keep_still()
        self._names = {name for name, _ in self._list_tensors()}
        sent = {id(b) for b in moving} | {id(counter) for counter, _ in self._counters}
        self._fixed = {name for name, one in self._list_tensors() if id(one) not in sent}
        """Names of what `forward()` may not change: parameters, buffers of frozen layers, and those with infinities."""

    def _list_tensors(self) -> list[tuple[str, Tensor]]:
        """Return the module's parameters and buffers, by name."""
        return [*self.module.named_parameters(), *self.module.named_buffers()]

    @cached_property
    def frozen_sha256(self) -> str:
        """Hash of the frozen weights; empty if there are none."""
        return digest_tensors(self.frozen) if self.frozen else ""

    @property
    def sha256(self) -> str:
        """Hash of what each process builds itself: initial weights, buffers, and tensors in attributes."""
        built = digest_tensors({str(k): tensor for k, tensor in enumerate([self.initial, *self.initial_state])})
        return hashlib.sha256(f"{built}{self.frozen_sha256}{self._arrays}".encode()).hexdigest()

    def check_module(self) -> None:
        """Refuse what `forward()` has done to the parameters and buffers since `start_at`, and name the attributes that
        have changed; the first call alone does.
        """
        if self._attributes is None:
            return
        kind, viewed = self._kind, self.theta.split(self._sizes)
        places = {name: view.data_ptr() for name, view in zip(self.layout.names, viewed, strict=True)}
        for name, tensor in self._list_tensors():
            made = name not in self._names  # a buffer that the trial pass made, such as a table of positions, may stay
            if name not in self._before or (made and isinstance(tensor, nn.Parameter)):
                raise UserError(
                    f"{kind} makes {name} in forward(), where nothing trains or keeps it; make it in __init__"
                )
            first, place, version = self._before[name]
            moved = tensor is not first or tensor.data_ptr() != places.get(name, place)
            if moved and not made and name not in self._fixed:
                raise UserError(
                    f"{kind} assigns its buffer {name} in forward(), so it would go on from client to client; write "
                    f"into it: self.{name}.copy_(...)"
                )
            if moved or ((made or name in self._fixed) and tensor._version != version):
                kept = "no step" if name in places else "no client (it is frozen, or begins with infinities)"
                raise UserError(f"{kind} changes {name} in forward(), which {kept} would keep; compute with a copy")
        before, self._attributes = self._attributes, None
        if changed := sorted(name for name, _, text in iter_attributes(self.module) if text != before.get(name)):
            warn_once(
                f"{kind}: {', '.join(changed)} changed in training; if forward() reads such an attribute, numbers "
                "depend on which clients a process has trained, so make it a buffer; one only looked at may stay"
            )

    @property
    def counted(self) -> str:
        """How much is trained, in words: `trained P of Q parameters`."""
        parameters = sum(t.numel() for t in self.frozen.values() if isinstance(t, nn.Parameter)) + self.layout.size
        return f"trained {self.layout.size:,} of {parameters:,} parameters"

    def _keep_still(self) -> None:
        """Put the frozen layers that have running statistics into evaluation mode."""
        for layer in self._still:
            layer.training = False

    def _keep_features(self, module: nn.Module, inputs: Sequence[Tensor]) -> None:
        self._features = inputs[0]

    def _keep_own(self, features: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        self._own_features = features(x)
        return self._own_features

    def _keep_tap(self, name: str, module: nn.Module, inputs: Sequence[Tensor]) -> None:
        # Averaged at once: an in-place activation overwrites its input. Channels are dimension 1 of images
        # (n, c, h, w), the last of tokens (n, l, d).
        x = inputs[0]
        self._taps[name] = x.flatten(2).mean(2) if x.ndim == 4 else x.mean(1) if x.ndim == 3 else x

    def start_at(self, initial: Tensor) -> None:
        """Make `initial` (P,) the parameters that a run begins with."""
        self.load(initial.to(self.theta.device))
        self.initial = initial.to(self.theta.device, copy=True)
        self._before = {name: (one, one.data_ptr(), one._version) for name, one in self._list_tensors()}
        self._attributes = {name: text for name, _, text in iter_attributes(self.module)}  # with the trial's tables

    def mask(self, part: str) -> Tensor:
        """Return float32 `(P,)` on the device: 1 on the parameters of a part."""
        return self._remember("mask", part, lambda: self.layout.part(part))

    def index(self, part: str) -> Tensor:
        """Return the positions of a part in theta: int64, on the device."""
        return self._remember("index", part, lambda: self.layout.part(part).nonzero().flatten())

    def find_buffers(self, part: str) -> Tensor:
        """Return the positions in `buffers` of the running statistics of a part: int64 `(n,)`, on the device."""
        return self._remember("buffers", part, lambda: self._statistics.part(part).nonzero().flatten())

    def _remember(self, what: str, part: str, find: Callable[[], Tensor]) -> Tensor:
        if (what, part) not in self._parts:
            self._parts[what, part] = find().to(self.theta.device)
        return self._parts[what, part]

    def load(self, theta: Tensor) -> None:
        """Make `theta` `(P,)` the module's parameters. A large one is viewed, not copied: it must not be written to
        later.

        A copy at every step takes 2 % of a step of 10 images with 1.6 million parameters; a few views cost 10 µs.
        """
        if theta.numel() <= VIEWED:
            self.theta.copy_(theta)
            return
        self.theta = theta
        for parameter, part in zip(self.trained, theta.split(self._sizes), strict=True):
            parameter.data = part.view(parameter.shape)

    def __call__(self, x: Tensor) -> Output:
        """Make a forward pass at the loaded parameters, in the module's present mode."""
        self._own_features = None
        if self._channels_last and x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        # If a block of autocast is open around this pass, PyTorch keeps the weights that it has cast before.
        torch.clear_autocast_cache()
        if not self._bf16:
            return self._forward(x)
        with torch.autocast(x.device.type, torch.bfloat16, cache_enabled=True):
            output = self._forward(x)
        return Output(output.logits.float(), output.features.float(), tuple(tap.float() for tap in output.taps))

    def _forward(self, x: Tensor) -> Output:
        before = x._version
        try:
            logits = self.module(x)
        except ValueError as error:  # in training, `LocalClient` says more
            if self.module.training or "more than 1 value per channel" not in str(error):
                raise
            raise UserError(
                f"{self._kind} has BatchNorm without running statistics, and a batch, or the last chunk of a test, has "
                "one sample alone; choose another norm, or another training.batch_size"
            ) from None
        if not isinstance(logits, Tensor):
            given = f"gives a {type(logits).__name__}{' in training' * self.module.training}"
            raise UserError(f"{self._kind}.forward {given}; a tensor with a number for each class is required")
        if x._version != before:
            raise UserError(
                f"{self._kind} changes its input in place, and methods take several gradients of a batch; let it "
                "copy the input first: x = x.clone()"
            )
        if self._features is None:
            mode = "in training" if self.module.training else "when it is tested"
            raise UserError(f"{self._kind}: its head, {self._head_name}, is not used in forward() {mode}; {DECLARE}")
        features, self._features = self._features, None
        if self._own is not None:  # as forward() computed them; a second pass only if it does not
            features = self._own(x) if self._own_features is None else self._own_features
        try:
            taps = tuple(self._taps.pop(name) for name in self._tap_names)
        except KeyError as missing:
            raise UserError(f"model.taps: {missing} is not used in forward()") from None
        return Output(logits, features, taps)

    def compute_gradient(
        self,
        theta: Tensor,
        x: Tensor,
        y: Tensor,
        part: str = "all",
        loss: MethodType | None = None,
        tensors: Sequence[Tensor] = (),
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of a batch and its gradient at theta `(P,)`, 0 outside the part, in the module's present
        mode.

        Float buffers follow the forward pass. The loss is the mean cross-entropy, or a method `loss(forward, x, y,
        *tensors)`; what is on another device is moved first, since a recording would hold on to a number of the host.
        """
        tensors = [bring(tensor, self.theta.device) for tensor in tensors]

        def compute(theta: Tensor, x: Tensor, y: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
            self.load(theta)
            value = cross_entropy(self(x).logits, y) if loss is None else loss(self, x, y, *tensors)
            refuse_no_scalar(value)
            gradients = torch.autograd.grad(value, self.parts[part], materialize_grads=True)
            return value.detach(), self.flatten(gradients, part)

        kind = "the gradient", part, None if loss is None or self.recorder is None else identify(loss)
        value, gradient = self._compute(kind, compute, theta, x, y, *tensors)
        return value, gradient

    def predict(self, theta: Tensor, x: Tensor) -> Output:
        """Return the output at theta `(P,)`, without gradient, in the module's present mode."""

        def compute(theta: Tensor, x: Tensor) -> tuple[Tensor, ...]:
            self.load(theta)
            output = self(x)
            return output.logits, output.features, *output.taps

        with torch.no_grad():
            logits, features, *taps = self._compute(("a prediction",), compute, theta, x)
        return Output(logits, features, tuple(taps))

    def _compute(self, kind: Hashable, compute: Compute, *given: Tensor) -> tuple[Tensor, ...]:
        return compute(*given) if self.recorder is None else self.recorder.run(kind, compute, given)

    def flatten(self, gradients: Sequence[Tensor], part: str = "all") -> Tensor:
        """Return gradients by the trained parameters of a part, as one vector `(P,)` that is 0 elsewhere."""
        if len(gradients) == len(self.trained):
            return torch.cat([g.reshape(-1) for g in gradients])
        given = {id(p): g for p, g in zip(self.parts[part], gradients, strict=True)}
        return torch.cat([given[id(p)].reshape(-1) if id(p) in given else p.new_zeros(p.numel()) for p in self.trained])

    def train(self, mode: bool) -> None:
        """Switch to training or evaluation mode; costs nothing if the module is in that mode."""
        if self.module.training != mode:
            self.module.train(mode)
            self._keep_still()

    def keep(self) -> list[Tensor]:
        """Return a copy of all buffers, for `restore`: the float ones (B,), then each other one."""
        return [self.buffers.clone(), *(counter.clone() for counter, _ in self._counters)]

    def restore(self, kept: Sequence[Tensor]) -> None:
        """Set all buffers to what `keep` returned."""
        self.buffers.copy_(kept[0])
        for (counter, _), value in zip(self._counters, kept[1:], strict=True):
            counter.copy_(value)

    @contextlib.contextmanager
    def keep_buffers(self) -> Iterator[None]:
        """Restore all buffers after a block."""
        kept = self.keep()
        try:
            yield
        finally:
            self.restore(kept)

    @property
    def initial_state(self) -> list[Tensor]:
        """All buffers of the run's initial model, as `keep` returns them."""
        return [self.initial_buffers, *(initial for _, initial in self._counters)]

    @property
    def has_buffers(self) -> bool:
        """True if the module has buffers."""
        return bool(self.buffers.numel() or self._counters)

    def reset(self, buffers: Tensor) -> None:
        """Set the float buffers (B,), and reset the integer ones (BatchNorm's batch counter)."""
        self.restore([buffers, *self.initial_state[1:]])


def _refuse_numbers(module: nn.Module, named: Mapping[str, nn.Parameter], moving: Sequence[Tensor]) -> None:
    """Refuse complex parameters; say which others, and which running statistics, become float32."""
    for name, parameter in named.items():
        if parameter.is_complex():
            raise UserError(f"model.name: {type(module).__name__}.{name} is complex; real numbers are required")
    statistics = {name: buffer for name, buffer in module.named_buffers() if any(buffer is one for one in moving)}
    every = [*named.items(), *statistics.items()]
    if other := {str(one.dtype).removeprefix("torch."): name for name, one in every if one.dtype != torch.float32}:
        types = ", ".join(f"{name} is {kind}" for kind, name in other.items())
        warn_once(
            f"model.name: {type(module).__name__}: {types}; trained parameters and running statistics become float32"
        )


def _convolve(module: nn.Conv2d, forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A convolution in bfloat16, but in float32 on a CPU if its kernel is larger than the image.

    In that case some weights see only padding, and oneDNN leaves their bfloat16 gradients uninitialised instead of 0
    (seen with PyTorch 2.15: 3x3, stride 2, on 1x1).
    """
    if x.device.type != "cpu" or min(x.shape[-2:]) >= max(module.kernel_size):
        return forward(x)
    with torch.autocast("cpu", enabled=False):
        return forward(x.float())


def _flatten(tensors: Sequence[Tensor]) -> Tensor:
    flat = torch.cat([t.detach().reshape(-1).float() for t in tensors])
    for t, part in zip(tensors, torch.split(flat, [t.numel() for t in tensors]), strict=True):
        t.data = part.view(t.shape)
    return flat
