"""LoRA: trained low-rank updates of a model's linear layers, whose own weights are frozen.

    output = W x + b + (alpha / rank) B A x      A (rank, d_in), B (d_out, rank)

A is drawn as PyTorch draws the weight of a linear layer, and B is 0, so an adapted model begins as the model itself.
Hu et al., LoRA: low-rank adaptation of large language models, ICLR 2022.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal, Self

from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn.functional import dropout, linear

from fedray.common.errors import UserError
from fedray.components.base import Checked
from fedray.models.parts import find_head, matches


class LoRALinear(nn.Linear):
    """A linear layer with an adapter: `weight` and `bias` keep their names, `lora_A` and `lora_B` are added.

    The layer's parameters become this one's. rank: rows of A and columns of B; scale: alpha / rank; share_dropped: the
    probability with which an entry of the adapter's input is dropped in training.
    """

    def __init__(self, layer: nn.Linear, rank: int, scale: float, share_dropped: float = 0.0) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias
        self.scale, self.share_dropped = scale, share_dropped
        self.lora_A = nn.Parameter(layer.weight.new_empty(rank, layer.in_features))
        self.lora_B = nn.Parameter(layer.weight.new_zeros(layer.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        inner = linear(dropout(x, self.share_dropped, self.training), self.lora_A)
        return linear(x, self.weight, self.bias) + self.scale * linear(inner, self.lora_B)


class LoRA(Checked):
    """The adapters of a model, and which of their two matrices are trained and sent.

    The head is trained and averaged, too (D-180); everything else is frozen.
    """

    rank: int = Field(8, gt=0, le=2**16, description="r: rows of A and columns of B")
    alpha: float = Field(16.0, gt=0, description="scales the update by alpha / rank")
    targets: tuple[str, ...] = Field(
        ("*",),
        min_length=1,
        description="names or patterns of the linear layers that are adapted; default all but the head's",
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="probability of dropping an entry of an adapter's input")
    train: Literal["both", "B"] = Field("both", description="B: A stays as drawn (FFA-LoRA)")
    share: Literal["both", "A", "B"] = Field(
        "both",
        description="the matrix that is averaged; each client keeps the other one. A: FedSA-LoRA. both: A and B are "
        "averaged apart, and the product of the means is not the mean of the products (D-181)",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.train == "B" and self.share != "both":
            raise UserError(f"model.lora.share: found {self.share} with train: B; A does not move, so share: both")
        return self

    def adapt(self, module: nn.Module) -> None:
        """Freeze a module except for its head, and give its linear layers adapters; draws from torch's generator.

        Raises UserError if a pattern names no linear layer of the body, or one of a kind that is not `nn.Linear`
        itself.
        """
        head = find_head(module)[0]
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(name.startswith(f"{head}.") and parameter.requires_grad)
        for layer in self._find_targets(module, head).values():
            adapted = LoRALinear(layer, self.rank, self.alpha / self.rank, self.dropout)
            adapted.lora_A.requires_grad_(self.train == "both")
            for place in [path for path, other in module.named_modules(remove_duplicate=False) if other is layer]:
                outer, _, last = place.rpartition(".")
                setattr(module.get_submodule(outer), last, adapted)

    def _find_targets(self, module: nn.Module, head: str) -> dict[str, nn.Linear]:
        """Return the layers to adapt, by name."""
        linears = {
            name: layer
            for name, layer in module.named_modules()
            if isinstance(layer, nn.Linear) and not f"{name}.".startswith(f"{head}.")
        }
        if not linears:
            raise UserError("model.lora: the model has no linear layer besides its head")
        chosen: dict[str, nn.Linear] = {}
        for pattern in self.targets:
            layers = {name: layer for name, layer in linears.items() if matches(name, pattern)}
            if not layers:
                valid = ", ".join(linears)
                raise UserError(f"model.lora.targets: {pattern!r} names no linear layer of the body; valid: {valid}")
            chosen |= layers
        for name, layer in chosen.items():
            if type(layer) is not nn.Linear:  # its forward() may never be called, as in nn.MultiheadAttention
                found = f"{name} is a {type(layer).__name__}"
                raise UserError(f"model.lora.targets: {found}; only nn.Linear itself is adapted, so name others")
        return chosen


@contextlib.contextmanager
def refuse_unused_adapters(module: nn.Module) -> Iterator[None]:
    """Raise UserError at the end of a block in which no forward pass calls an adapter: PyTorch reads some weights
    itself.
    """
    adapted = {name: layer for name, layer in module.named_modules() if isinstance(layer, LoRALinear)}
    called = set[str]()
    for name, layer in adapted.items():  # no hook: PyTorch's fused layers call what has hooks
        layer.__dict__["forward"] = partial(_note_call, called, name, layer.forward)
    yield
    for layer in adapted.values():
        del layer.__dict__["forward"]
    if unused := [name for name in adapted if name not in called]:
        raise UserError(
            f"model.lora.targets: forward() does not call {unused[0]} when it is tested, so an adapter does nothing "
            "there; name others"
        )


def _note_call(called: set[str], name: str, forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    called.add(name)
    return forward(x)


def find_matrices(module: nn.Module, matrix: Literal["lora_A", "lora_B"]) -> frozenset[str]:
    """Return the names of one matrix of all adapters."""
    return frozenset(f"{path}.{matrix}" for path, layer in module.named_modules() if isinstance(layer, LoRALinear))
