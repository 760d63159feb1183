"""FedSOL, its combinations and strategies, and the projection that it is compared with.

FedSOL takes the descent gradient at a point perturbed along a proximal loss L_p, towards the costliest forgetting of
the global model; the proximal loss itself is not part of the step.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field, field_serializer, field_validator, model_validator
from torch import Tensor
from torch.nn.functional import normalize

from fedray.algorithms.auxiliary import FEDSOL, MOON, AuxiliaryLoss, FedAvgKL
from fedray.algorithms.base import Algorithm, Client, Part, Proximal
from fedray.algorithms.fedavg import FedProx
from fedray.algorithms.feddyn import FedDyn
from fedray.algorithms.fednova import FedNova
from fedray.algorithms.scaffold import Scaffold
from fedray.common.errors import UserError
from fedray.components.base import option
from fedray.components.plugins import resolve
from fedray.models.network import Layout


class NovaProximal(FedNova):
    """FedNova's averaging, with y - x as proximal gradient: its local solver's term, whose weight a unit vector loses.

    The step has no proximal term, so a_i counts none: μ = 0. The paper leaves FedNova's perturbation open.
    """

    mu: float = Field(0.0, ge=0, le=0)

    def proximal(self, c: Client, theta: Tensor) -> Tensor:
        return theta - c.theta_0


class WithProximalLoss(Algorithm):
    """A method around another's proximal loss: except for the step it is that method, including its bookkeeping."""

    choices: ClassVar[dict[str, type[Proximal]]] = {
        "kl": FedAvgKL,
        "fedprox": FedProx,
        "fednova": NovaProximal,
        "scaffold": Scaffold,
        "feddyn": FedDyn,
        "moon": MOON,
    }
    proximal: Proximal = Field(
        "kl",
        validate_default=True,
        description="L_p, a name or a mapping with its options: kl, fedprox, fednova, scaffold, feddyn, moon",
    )

    @field_validator("proximal", mode="before")
    @classmethod
    def _choose(cls, value: Any) -> Proximal:
        return resolve("algorithm.proximal", value, cls.choices)

    @field_serializer("proximal")
    def _options(self, proximal: Proximal) -> dict[str, Any]:
        return {"name": self.proximal_name, **proximal.model_dump(mode="json")}

    @property
    def proximal_name(self) -> str:
        """Key of the proximal loss in `choices`, or the name of a variant of one."""
        return next((name for name, kind in self.choices.items() if kind is type(self.proximal)), self.proximal.name)

    @property
    def bound_to_sgd(self) -> str:  # type: ignore[override]
        """The reason of the method that L_p comes from."""
        return self.proximal.bound_to_sgd

    @property
    def scales_update(self) -> bool:  # type: ignore[override]
        return self.proximal.scales_update

    def overrides(self, hook: str) -> bool:
        passed_on = getattr(type(self), hook) is vars(WithProximalLoss).get(hook)
        return self.proximal.overrides(hook) if passed_on else super().overrides(hook)

    def proximal_gradient(self, c: Client, theta: Tensor, part: Part = "all") -> Tensor:
        """Return ∇L_p at theta; for a loss on the outputs only the requested part is computed, the rest being 0."""
        if isinstance(self.proximal, AuxiliaryLoss):
            return self.proximal.proximal(c, theta, part)
        return self.proximal.proximal(c, theta)


def _pass_on(hook: str) -> Callable[..., Any]:
    return lambda method, *given, **named: getattr(method.proximal, hook)(*given, **named)


BOOKKEEPING = ("server_state", "client_state", "broadcast", "message", "begin", "upload", "aggregate")
for name in ("check", "check_built", *BOOKKEEPING):  # those of the method that the loss comes from
    setattr(WithProximalLoss, name, _pass_on(name))


class FedSOL(WithProximalLoss):
    """q = g(y + e) with e = ρ Λ unit(∇L_p(y)) on the perturbed part, 0 elsewhere and if ∇L_p vanishes (D-34).

    L_p is KL(softmax(z_g/τ) || softmax(z/τ)) with τ = 3, or another method's proximal loss ("combined", table 4, which
    perturbs all parameters); then that method's duals, variates and averaging stay active while its term is left out of
    the step. Λ = |y - x|, divided by its norm along the first dimension of each parameter tensor, as in the code
    (D-25). fixed: Λ = 1. The authors' code averages by samples (`training.aggregation: samples`, D-26).

    Strategies of table 10, e_c from ∇L + ∇L_p: A0 ∇L(y), A1 ∇L(y + e), A2 ∇L(y) + ∇L_p(y + e), A3 ∇L(y + e) +
    ∇L_p(y + e), A4 like A3 at y + e_c (with Λ, D-107), A5 ∇L(y) + ∇L_p(y), A6 ∇L(y + e) + ∇L_p(y). Their
    weight β of ∇L_p is L_p's own (kl: `weight`, fedprox: `mu`).
    """

    name = "fedsol"
    paper = f"{FEDSOL}, algorithm 1"
    idea = "descends where a proximal loss is worst, instead of adding it"
    rho: float = option(
        2.0,
        ge=0,
        description="ρ: radius of the perturbation",
        paper={"table 8": 2.0, "code": 1.0, "searched": [0.1, 0.5, 1, 2]},
    )
    perturb: Literal["all", "body", "head"] = Field(
        "head", description="perturbed parameters; default all for any L_p except kl"
    )
    radius: Literal["adaptive", "fixed"] = Field("adaptive", description="Λ: by how far each parameter has moved, or 1")
    strategy: Literal["A0", "A1", "A2", "A3", "A4", "A5", "A6"] = Field("A1", description="A1 is FedSOL")

    @model_validator(mode="before")
    @classmethod
    def _perturb_all_when_combined(cls, options: dict[str, Any]) -> dict[str, Any]:
        proximal = options.get("proximal", "kl")
        name = proximal.get("name") if isinstance(proximal, dict) else proximal
        return options if name == "kl" else {"perturb": "all", **options}

    @model_validator(mode="after")
    def _refuse_what_perturbs_nothing(self) -> Self:
        if self.proximal_name == "moon" and self.perturb == "head":
            raise UserError("algorithm.perturb: found 'head', on which MOON's loss does not depend; body or all")
        return self

    def check_built(self, layout: Layout, tokens: bool) -> None:
        super().check_built(layout, tokens)
        self.refuse_untrained(layout, self.perturb)

    def make_label(self) -> str:
        """Name in the paper's tables: `fedsol`, `fedsol-all`, `fedsol+feddyn`, `fedsol-a3`."""
        if self.proximal_name != "kl":
            return f"fedsol+{self.proximal_name}"
        part = "" if self.perturb == "head" else f"-{self.perturb}"
        return f"fedsol{part}" + ("" if self.strategy == "A1" else f"-{self.strategy.lower()}")

    def begin(self, c: Client) -> None:
        super().begin(c)
        c.local.perturbed = c.layout.part(self.perturb).to(c.theta.device)

    @property
    def radii(self) -> Callable[[Client], Tensor] | None:
        """None with a fixed radius."""
        return None if self.radius == "fixed" else self.adapt_radii

    def adapt_radii(self, c: Client) -> Tensor:
        """Return an adaptive Λ: float32 `(..., P)`."""
        moved = (c.theta - c.theta_0).abs().split(list(c.layout.sizes), dim=-1)
        rows = [shape[0] if shape else 1 for shape in c.layout.shapes]
        parts = [part.unflatten(-1, (n, -1)) for part, n in zip(moved, rows, strict=True)]
        return torch.cat([normalize(part, dim=-2).flatten(-2) for part in parts], dim=-1)

    def perturbed(self, c: Client, g: Tensor) -> Tensor:
        """Return y + e with e along g."""
        g = g * c.local.perturbed
        norm = torch.linalg.vector_norm(g, dim=-1, keepdim=True)
        radii = self.radii(c) if self.radii else 1.0
        return c.theta + self.rho * radii * torch.where(norm < 1e-8, 0.0, g / (norm + 1e-12))

    def gradient(self, c: Client) -> Tensor:
        y = c.theta
        match self.strategy:
            case "A0":
                return c.grad(y)
            case "A1":
                return c.grad(self.perturbed(c, self.proximal_gradient(c, y, self.perturb)))
            case "A4":
                there = self.perturbed(c, c.grad(y) + self.proximal_gradient(c, y))
                return c.grad(there) + self.proximal_gradient(c, there)
            case "A5":
                return c.grad(y) + self.proximal_gradient(c, y)
        g_p = self.proximal_gradient(c, y)
        there = self.perturbed(c, g_p)
        return c.grad(y if self.strategy == "A2" else there) + (
            g_p if self.strategy == "A6" else self.proximal_gradient(c, there)
        )


class Projection(WithProximalLoss):
    """q = g - min(0, <g, g_p>) g_p / <g_p, g_p> with g_p = ∇L_p(y): only the part that does not oppose a proximal loss.

    FedSOL's table 1; one inner product over all parameters.
    """

    name = "projection"
    paper = f"{FEDSOL}, table 1"
    idea = "removes the part of each step that conflicts with a proximal loss"
    choices = {"kl": FedAvgKL, "fedprox": FedProx}
    proximal: Proximal = Field(
        "kl", validate_default=True, description="L_p, a name or a mapping with its options: kl, fedprox"
    )

    def make_label(self) -> str:
        """Name in the paper's table 1: `fedavg+kl-projection`, `fedavg+l2-projection`."""
        return f"fedavg+{'l2' if self.proximal_name == 'fedprox' else self.proximal_name}-projection"

    def gradient(self, c: Client) -> Tensor:
        g, g_p = c.grad(c.theta), self.proximal_gradient(c, c.theta)
        along, length = (g * g_p).sum(-1, keepdim=True), (g_p * g_p).sum(-1, keepdim=True)
        return g - torch.where(length > 0, along.clamp(max=0) / length, 0.0) * g_p
