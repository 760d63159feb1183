"""Adaptive local steps whose moments the server carries from round to round: FedAdamW, FedLADA, FedMuon."""

from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedray.algorithms.base import Algorithm, Client, Finetuning, Received, Rule, Server, Sum, Uploads, Vectors, holds
from fedray.algorithms.fedavg import LocalAdamW, LocalMuon
from fedray.algorithms.local_optimizers import AdamW, Matrices, Muon, MuonOptions, correction
from fedray.algorithms.momentum import ClientMomentum
from fedray.components.base import option
from fedray.models.network import Layout


class Corrected(Rule):
    """d = share · (another rule's d) - drift: the drift is neither clipped nor decayed."""

    def __init__(self, rule: Rule, drift: Tensor, share: float = 1.0) -> None:
        super().__init__(rule.state)
        self.rule, self.drift, self.share = rule, drift, share

    def displacement(self, q: Tensor, decay: Tensor | float, mask: Tensor | None = None) -> Tensor:
        d = self.rule.displacement(q, decay, mask)
        return (d if self.share == 1 else self.share * d) - self.drift


@holds(server=["delta"], sent="all")
class GlobalDirection(Algorithm):
    """Base of the methods with an optimiser of their own and D = U/η_t, the last round's mean update over its rate."""

    bound_to_sgd = "has a local optimiser of its own"

    def aggregate(self, server: Server, got: Received) -> None:
        super().aggregate(server, got)
        server.state.delta = got.update / server.lr


class FedAdamW(GlobalDirection):
    """q = g(y), clipped; m and v as Adam's, m from 0 and v from v̄; y <- y - η_t (m^/(√v^ + ε) + wd y - α D/K_i).

    m^ = m/(1 - β1^k), v^ = v/(1 - β2^(t0 + k)), k the step of the round and t0 the mean number of steps made before it.
    D = U/η_t of the previous round, 0 in the first. Afterwards x <- x + η_g U, v̄ = Σ π_i v_i.

    Readings: of v the mean over each parameter tensor is sent and spread, one number per tensor (D-135); only v's
    correction counts the steps of earlier rounds (D-136); α D/K_i is scaled by η_t (D-137). α = 0 with v̄ = 0 is
    `local-adamw`, and so is the first round. Summaries and code were read instead of the paper [S].
    """

    name = "fedadamw"
    revision = 1  # v and the number of steps in wide sums
    paper = LocalAdamW.paper
    idea = "AdamW with averaged second moments, and a share of the last global direction in each step"
    alpha: float = option(0.5, ge=0, description="α: weight of the global direction", paper={"FedAdamW": 0.5})
    beta1: float = Field(0.9, ge=0, lt=1, description="β1: decay of the mean of gradients")
    beta2: float = Field(0.999, ge=0, lt=1, description="β2: decay of the mean of squared gradients")
    eps: float = Field(1e-8, ge=0, description="ε: added to √v")
    second_moment: Literal["tensors", "full"] = Field(
        "tensors", description="what is averaged of v: a mean for each tensor, or all of it (D-135)"
    )
    correction: Literal["paper", "code"] = Field(
        "paper", description="code: m is corrected by 1 - β1^(t0 + k) as well (D-136)"
    )

    def server_state(self, theta: Tensor) -> Vectors:
        return Vectors(super().server_state(theta), steps=theta.new_zeros(()))

    def begin(self, c: Client) -> None:
        v = c.message.get("v", torch.zeros_like(c.theta))
        c.local.m, c.local.steps = torch.zeros_like(c.theta), c.theta.new_zeros(())
        c.local.v = v if len(v) == len(c.theta) else spread(v, c.layout)

    def local_optimizer(self, c: Client) -> Rule:
        before = c.message.steps
        counts = (before if self.correction == "code" else torch.zeros_like(before), before)
        rule = AdamW(self.beta1, self.beta2, self.eps, c.local, counts)
        return Corrected(rule, self.alpha / c.steps * c.message.delta)

    @property
    def finetuning(self) -> Finetuning:
        return Finetuning(rule=lambda c: AdamW(self.beta1, self.beta2, self.eps))

    def upload(self, c: Client) -> Uploads:
        v = c.local.v if self.second_moment == "full" else means(c.local.v, c.layout)
        steps = c.theta.new_tensor(float(c.steps))
        return {"v": Sum(v, c.weight, wide=True), "steps": Sum(steps, wide=True)}

    def aggregate(self, server: Server, got: Received) -> None:
        super().aggregate(server, got)
        server.state.v = got.v
        server.state.steps = server.state.steps + got.steps / server.cohort


def means(v: Tensor, layout: Layout) -> Tensor:
    """Return the mean of each of the B tensors of v `(P,)`, `(B,)`."""
    return torch.stack([tensor.mean() for tensor in layout.views(v).values()])


def spread(values: Tensor, layout: Layout) -> Tensor:
    """Return one number per tensor `(B,)` at each of its entries, `(P,)`."""
    # Without the size PyTorch would wait for the device to add it up.
    return values.repeat_interleave(torch.tensor(layout.sizes, device=values.device), output_size=layout.size)


class LADA(Rule):
    """FedLADA's step: its state is m, v, v_max `(P,)` in the paper's form, and m, v, steps in the code's."""

    def __init__(self, method: "FedLADA", state: Vectors, g: Tensor, first: bool) -> None:
        super().__init__(state)
        self.method, self.g, self.first = method, g, first

    def displacement(self, q: Tensor, decay: Tensor | float, mask: Tensor | None = None) -> Tensor:
        method, old = self.method, self.state
        a, beta1, beta2 = method.alpha, method.beta1, method.beta2
        vision = method.form == "vision"
        q = q + decay if vision else q
        m = beta1 * old.m + (1 - beta1) * q
        v = beta2 * old.v + (1 - beta2) * q.square()
        if vision:
            steps = old.steps + 1
            self.state.update(m=m, v=v, steps=steps)
            if self.first:
                m, v = m / correction(beta1, steps), v / correction(beta2, steps)
            return a * m / (v.sqrt() + method.eps) + (1 - a) * self.g
        self.state.update(m=m, v=v, v_max=torch.maximum(old.v_max, v))
        return a * m / self.state.v_max.sqrt() + (1 - a) * self.g + decay


class FedLADA(ClientMomentum):
    """q = g(y), clipped; m <- β1 m + (1 - β1) q, v <- β2 v + (1 - β2) q², both from 0, v^ <- max(v^, v) from v̄;
    y <- y - η_t (a m/√v^ + (1 - a) Δ + wd y), Δ = -Σ π_i u_i/(K_i η_t) of the previous round.

    v̄ = Σ π_i v^_i, at first ε² (D-138); no bias correction. The form is a third party's reading of the paper. As
    the code of FedAdamW has it (`form: vision`): v starts at v̄ without a maximum, √v + ε, wd y is part of q, and both
    moments are corrected in the first round only.
    """

    name = "fedlada"
    revision = 1  # v in wide sums, and v̄ of at least ε²
    paper = (
        "Sun et al., Efficient federated learning via local adaptive amended optimizer with linear speedup, TPAMI 2023"
    )
    idea = "local AMSGrad steps, amended by the last global direction"
    bound_to_sgd = "has a local optimiser of its own"
    alpha: float = option(
        0.1,
        ge=0,
        le=1,
        description="a: weight of the adaptive step; 1 - a is the global direction's",
        paper={"FedLADA, FedAdamW's code": 0.1},
    )
    beta1: float = Field(0.9, ge=0, lt=1, description="β1: decay of the mean of gradients")
    beta2: float = option(
        0.99,
        ge=0,
        lt=1,
        description="β2: decay of the mean of squared gradients",
        paper={"FedLADA": 0.99, "FedAdamW's code": 0.999},
    )
    eps: float = Field(
        1e-8, ge=1e-18, description="ε: √v̄ of the first round, squared in float32; with `form: vision` added to √v"
    )
    form: Literal["paper", "vision"] = Field("paper", description="vision: as in FedAdamW's code (D-138)")

    def begin(self, c: Client) -> None:
        zero = torch.zeros_like(c.theta)
        c.local.m = zero
        if self.form == "vision":
            c.local.v, c.local.steps = c.message.get("v", zero), zero.new_zeros(())
        else:
            c.local.v, c.local.v_max = zero, c.message.get("v", torch.full_like(zero, self.eps**2))

    def local_optimizer(self, c: Client) -> Rule:
        return LADA(self, c.local, c.message.delta, first="v" not in c.message)

    @property
    def finetuning(self) -> Finetuning:
        return Finetuning(rule=lambda c: AdamW(self.beta1, self.beta2, self.eps))

    def upload(self, c: Client) -> Uploads:
        v = c.local.v if self.form == "vision" else c.local.v_max
        return {**super().upload(c), "v": Sum(v, c.weight, wide=True)}

    def aggregate(self, server: Server, got: Received) -> None:
        super().aggregate(server, got)
        server.state.v = got.v if self.form == "vision" else got.v.clamp(min=self.eps**2)  # all v^_i are at least ε²


class FedMuon(GlobalDirection):
    """q = g(y), clipped; d = f (s O + wd y) on matrices with Muon's momentum M from M̄, AdamW's step elsewhere;
    y <- y - η_t ((1 - γ) d - γ D/K_i).

    O is the nearly orthogonal matrix of (1 - β) q + β M, s = √max(1, rows/columns), as with `training.optimizer: muon`
    (D-130..D-134); D = U/η_t of the previous round, 0 in the first. Afterwards x <- x + η_g U, M̄ = Σ π_i M_i; AdamW's
    vectors start anew in each round. γ = 0 with M̄ = 0 and β = 0.95 is `local-muon`. The first round steps with 1 - γ.

    Another method has the same name: bias-corrected steps with variates (arXiv 2509.26337), which this is not (D-139).
    Summaries and code were read instead of the paper [S].
    """

    name = "fedmuon"
    paper = LocalMuon.paper
    idea = "Muon with averaged momentum, and a share of the last global direction in each step"
    gamma: float = option(
        0.5,
        ge=0,
        le=1,
        description="γ: weight of the global direction; 1 - γ is the local step's",
        paper={"FedMuon": 0.5},
    )
    momentum: float = option(0.98, ge=0, lt=1, description="β: momentum of matrices", paper={"FedMuon": 0.98})
    nesterov: bool = Field(True, description="O from (1 - β) q + β M; false: from M (D-130)")
    steps: int = Field(5, ge=1, le=100, description="Newton-Schulz steps (D-131)")
    lr_factor: float = option(
        1.0, gt=0, description="f: factor on η for the matrices (D-134)", paper={"DeiT-Tiny": 10, "ResNet-18": 0.5}
    )
    matrices: Matrices = Field(
        "all", description="parameters with two or more dimensions, or without the head and embeddings (D-133)"
    )

    @property
    def muon(self) -> MuonOptions:
        """Muon's options."""
        chosen: dict[str, Any] = {name: getattr(self, name) for name in MuonOptions.model_fields}
        return MuonOptions(**chosen)

    def begin(self, c: Client) -> None:
        if "momentum" in c.message:
            c.local.momentum = c.message.momentum

    def local_optimizer(self, c: Client) -> Rule:
        return Corrected(Muon(self.muon, c.layout, c.local), self.gamma / c.steps * c.message.delta, 1 - self.gamma)

    @property
    def finetuning(self) -> Finetuning:
        return Finetuning(rule=lambda c: Muon(self.muon, c.layout))

    def upload(self, c: Client) -> Uploads:
        return {"momentum": Sum(c.local.momentum, c.weight)} if "momentum" in c.local else {}

    def aggregate(self, server: Server, got: Received) -> None:
        super().aggregate(server, got)
        if "momentum" in got.sums:
            server.state.momentum = got.sums["momentum"]
