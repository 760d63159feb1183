"""Other forms of the methods: what other people's code has in a formula's place, and what a paper prints otherwise.

The forms of METHOD are options of the method METHOD@forms, with the numbers of `docs/discrepancies.md`. Its defaults
are METHOD's, and everything else about it is METHOD's too. `fedray.algorithms` finds these classes by name and imports
this module only if one is asked for.
"""

from typing import Annotated, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn.functional import normalize

from fedray.algorithms.base import Algorithm, Client, Received, Server, Sum, Uploads, Vectors, unit
from fedray.algorithms.feddyn import FedDC, FedDyn
from fedray.algorithms.fedgela import FedGE, FedGELA
from fedray.algorithms.fedgloss import FedGloSS
from fedray.algorithms.fedlesam import FedLESAM, FedLESAMD, FedLESAMS
from fedray.algorithms.fednova import effective_steps
from fedray.algorithms.fedsam import FedASAM, FedGAMMA, FedSAM, FedSpeed, LocalSAM
from fedray.algorithms.fedsol import FedSOL
from fedray.algorithms.fedtoga import FedTOGA
from fedray.algorithms.fedwmsam import FedWMSAM
from fedray.algorithms.linear_head import counts
from fedray.algorithms.scaffold import ControlVariates, Scaffold
from fedray.common.errors import FORMS, UserError, restate
from fedray.common.vectors import add_to, move_along
from fedray.common.yaml_files import locate_file
from fedray.components.base import option
from fedray.components.identity import FILE
from fedray.models.network import Layout, Output


class VariateForms(ControlVariates):
    """Base of the forms of methods with control variates."""

    divisor: Literal["steps", "effective"] = Field(
        "steps", description="effective: FedNova's a(K_i) instead of K_i, for local momentum (FedSOL's code, D-32)"
    )
    variates: Literal["uniform", "samples"] = Field(
        "uniform", description="weights of the changes of c_i in c: equal, or by samples (FedSOL's code, D-32)"
    )
    variate_lr: Literal["round", "first"] = Field(
        "round", description="η in the variates: the round's, or the first round's (FedDC's code, D-23)"
    )

    def size(self, c: Client) -> float:
        """Return the weight of the change of this client's c_i in the mean of all N."""
        return 1.0

    def upload(self, c: Client) -> Uploads:
        steps = c.counted_steps if self.divisor == "steps" else effective_steps(c.steps, c.momentum)
        change = -c.message.c - c.update / (steps * (c.lr if self.variate_lr == "round" else c.first_lr))
        c.state.c = c.state.c + change
        if self.variates == "uniform":
            return {"c_change": Sum(change, self.size(c))}
        share = c.samples / c.total_samples
        return {"c_change": Sum(change, share), "samples": Sum(change.new_ones(()), share)}

    def aggregate(self, server: Server, got: Received) -> None:
        if self.variates == "samples":
            got = Received(Vectors(got.sums, c_change=server.cohort * got.c_change / got.samples))
        super().aggregate(server, got)


class ScaffoldForms(Scaffold, VariateForms):
    """q = g(y) + c - c_i, with c, c_i and the step as other authors' codes have them.

    FedSOL's divides u_i by η_t times the number of steps that K_i steps amount to with momentum (`divisor: effective`),
    and adds to c the changes of c_i weighted by samples, (M/N) Σ n_i Δc_i / Σ n_j (`variates: samples`, D-32); FedDC's
    divides by the first round's η (`variate_lr: first`, D-23). With w_i = n_i N/Σ_all n, c is in FedExP's the mean of
    w_i c_i (`scaling: samples`); FedDyn's has the same c, and steps along c/w_i - c_i (`correction: scaled`, D-127).
    `variates`, `scaling` and `correction` are weights of the same changes, so two of them together are refused.
    """

    name = "scaffold@forms"
    scaling: Literal["clients", "samples"] = Field(
        "clients", description="c: the mean of the c_i, or of w_i c_i (FedExP's code, D-127)"
    )
    correction: Literal["plain", "scaled"] = Field(
        "plain", description="scaled: c/w_i in the step, and w_i times the change of c_i in c (FedDyn's code, D-127)"
    )

    @model_validator(mode="after")
    def _refuse_two_weights(self) -> Self:
        if (self.variates, self.scaling, self.correction).count("samples") + (self.correction == "scaled") > 1:
            raise UserError(
                f"algorithm.scaling: found {self.scaling} with variates {self.variates} and correction "
                f"{self.correction}; only one of the three may weigh the changes of c_i"
            )
        return self

    def size(self, c: Client) -> float:
        return 1.0 if (self.scaling, self.correction) == ("clients", "plain") else relative_size(c)

    def proximal(self, c: Client, theta: Tensor) -> Tensor:
        return c.message.c / (1.0 if self.correction == "plain" else relative_size(c)) - c.state.c


def relative_size(c: Client) -> float:
    """Return w_i = n_i N / Σ n_j: a client's samples relative to the mean client's."""
    return c.samples * c.total_clients / c.total_samples


class FedDynForms(FedDyn):
    """q = g(y) + α_i (y - x + H_i): with `scaling: samples` α_i is α/w_i, w_i = n_i N/Σ n, as in the authors' code
    (D-17).
    """

    name = "feddyn@forms"
    scaling: Literal["constant", "samples"] = Field("constant", description="samples: α_i = α Σ n/(n_i N) (D-17)")

    def proximal(self, c: Client, theta: Tensor) -> Tensor:
        return add_to(theta - c.theta_0, c.state.h, scale=self.decoupled_weight(c))

    def decoupled_weight(self, c: Client) -> float:
        return self.alpha if self.scaling == "constant" else self.alpha / relative_size(c)


class FedDCForms(FedDC):
    """q = g(y) + α/w_i (y - x + h_i) + c/w_i - c_i: with `scaling: samples` w_i is n_i N/Σ n, w_i Δc_i enters c, and
    Δc_i has c/w_i, too; `variate_lr: first` divides u_i by the first round's η. Both as the code (D-17, D-23).
    """

    name = "feddc@forms"
    scaling: Literal["constant", "samples"] = Field("constant", description="samples: α/w_i, c/w_i and w_i Δc_i (D-17)")
    variate_lr: Literal["round", "first"] = Field(
        "round", description="η in the variates: the round's, or the first round's (D-23)"
    )

    def size(self, c: Client) -> float:
        """Return w_i, or 1 if clients count equally."""
        return 1.0 if self.scaling == "constant" else relative_size(c)

    def proximal(self, c: Client, theta: Tensor) -> Tensor:
        pull = add_to(theta - c.theta_0, c.state.h, scale=self.alpha / self.size(c))
        return pull + c.message.c / self.size(c) - c.state.c

    def upload(self, c: Client) -> Uploads:
        lr = c.lr if self.variate_lr == "round" else c.first_lr
        change = -c.message.c / self.size(c) - c.update / (c.counted_steps * lr)
        c.state.c = c.state.c + change
        return {**super(FedDC, self).upload(c), "c_change": Sum(change, self.size(c))}


class PerturbForms(LocalSAM):
    """Base of the forms of methods with SAM's gradient: g restricted to the part that is perturbed."""

    perturb: Literal["all", "head", "body"] = Field("all", description="perturbed parameters (FedSOL's code, D-116)")

    def check_built(self, layout: Layout, tokens: bool) -> None:
        super().check_built(layout, tokens)
        self.refuse_untrained(layout, self.perturb)

    def ascent(self, c: Client) -> Tensor:
        return c.grad(c.theta, part=self.perturb)


class FedSAMForms(FedSAM, PerturbForms):
    """q = g(y + ρ unit(g(y))) with a part of g, or as it is printed.

    `perturb: head` or `body` perturbs only that part of the parameters, by its unit gradient (FedSOL's code, D-116).
    Eq. 3 multiplies the perturbation element-wise by sign(g), which makes it ρ |g|/||g||, not an ascent direction
    (`sign: true`, D-22); algorithms 1 and 3 move x by the previous update (`delta: old`, D-21).
    """

    name = "fedsam@forms"
    sign: bool = Field(False, description="eq. 3's perturbation, ρ sign(g) g/||g|| (D-22)")
    delta: Literal["new", "old"] = Field(
        "new", description="update of x: U of this round, or of the previous one (D-21)"
    )

    def server_state(self, theta: Tensor) -> Vectors:
        return Vectors(delta=torch.zeros_like(theta)) if self.delta == "old" else Vectors()

    def ascent(self, c: Client) -> Tensor:
        g = super().ascent(c)
        return g.abs() if self.sign else g

    def aggregate(self, server: Server, got: Received) -> None:
        if self.delta == "old":
            got, server.state.delta = got.with_update(server.state.delta), got.update
        super().aggregate(server, got)


class FedASAMForms(FedASAM):
    """q = g(y + ρ T² g(y) / ||T g(y)||): FedSOL's port is `scaled: all, eta_a: 0`, T = |y| everywhere, with ρ = 1
    (D-53).
    """

    name = "fedasam@forms"
    scaled: Literal["weights", "all"] = Field(
        "weights", description="parameters that T scales: those named weight, or all"
    )

    def begin(self, c: Client) -> None:
        super().begin(c)
        if self.scaled == "all":
            c.local.scaled = torch.ones_like(c.local.scaled)


class FedGAMMAForms(FedGAMMA, PerturbForms, VariateForms):
    """q = g(y + ρ unit(g(y))) + c - c_i with the forms of `fedsam@forms` and `scaffold@forms`."""

    name = "fedgamma@forms"


class FedSpeedForms(FedSpeed, PerturbForms):
    """q = (1 - a) g(y) + a g(y + ρ unit(g(y))) + α (y - x + H_i), as it is printed (`mix: a`, D-15).

    With `dual_mean: cohort` each client of the cohort corrects its own upload, so that the server adds the cohort's
    mean of H, which is the same if all clients take part with equal weights (D-15). `perturb` as in `fedsam@forms`.
    """

    name = "fedspeed@forms"
    mix: float = option(
        1.0,
        ge=0,
        le=1,
        description="a: weight of the perturbed gradient (the paper's α, D-15)",
        paper={"FedSpeed's code": 1},
    )
    dual_mean: Literal["all", "cohort"] = Field("all", description="clients whose mean H the server adds (D-15)")

    def gradient(self, c: Client) -> Tensor:
        if self.mix == 1:
            return super().gradient(c)
        g = c.grad(c.theta)
        along = g if self.perturb == "all" else g * c.layout.part(self.perturb).to(g.device)
        return (1 - self.mix) * g + self.mix * c.grad(move_along(c.theta, self.rho, along))

    def server_state(self, theta: Tensor) -> Vectors:
        return super().server_state(theta) if self.dual_mean == "all" else Vectors()

    def upload(self, c: Client) -> Uploads:
        uploads = super().upload(c)
        return uploads if self.dual_mean == "all" else {"dual": Sum(c.state.h, c.weight)}

    def aggregate(self, server: Server, got: Received) -> None:
        if self.dual_mean == "all":
            super().aggregate(server, got)
        else:
            Algorithm.aggregate(self, server, got)
            server.theta = server.theta + got.dual


class FedTOGAForms(FedTOGA):
    """q = g~ + α (y - x + H_i) + β Δ with other readings of the text, or with parts switched off.

    Δ divided by η (`delta_scale: gradient`, D-1), the printed algorithm's divisor M of h (`dual_divisor: cohort`, D-2),
    section 4.1's ρ² (`radius: squared`, D-7).

    The four parts can be switched off, as in table 10: without `sam` g~ = g(y); without `dynamic_regularisation` there
    is no H (α = 0 would keep the server's h, D-14); without `dual_correction` no βΔ; without `sam_correction` r = g(y).
    Then the method's label is table 10's: `fedtoga-sam+dr` without both corrections, `fedtoga-sam+dr+dual` without the
    second.
    """

    name = "fedtoga@forms"
    delta_scale: Literal["mean_step", "gradient"] = Field(
        "mean_step", description="Δ as a mean local step (u/K), or divided by η_t as well (D-1)"
    )
    radius: Literal["rho", "squared"] = Field("rho", description="length of the perturbation: ρ, or ρ² (D-7)")
    dual_divisor: Literal["all", "cohort"] = Field("all", description="h divides by N, or by the cohort's M (D-2)")
    sam: bool = Field(True, description="perturb at all")
    dynamic_regularisation: bool = Field(True, description="the α term and the server's h")
    dual_correction: bool = Field(True, description="the β term")
    sam_correction: bool = Field(True, description="the perturbation has more terms than g(y)")

    def make_label(self) -> str:
        """`fedtoga@forms`, or the parts that are on: `fedtoga-sam+dr+dual`."""
        parts = {
            "sam": self.sam,
            "dr": self.dynamic_regularisation,
            "dual": self.dual_correction,
            "correction": self.sam_correction,
        }
        return self.name if all(parts.values()) else f"fedtoga-{'+'.join(p for p, on in parts.items() if on)}"

    @property
    def bound_to_sgd(self) -> str:  # type: ignore[override]
        """The reason if anything reads Δ."""
        reads = self.dual_correction or (self.sam and self.sam_correction)
        return FedTOGA.bound_to_sgd if reads else ""

    def ascent(self, c: Client) -> Tensor:
        return super().ascent(c) if self.sam_correction else c.grad(c.theta)

    def gradient(self, c: Client) -> Tensor:
        if not self.sam:
            return c.grad(c.theta)
        rho = self.rho if self.radius == "rho" else self.rho**2
        c.local.g_tilde = c.grad(move_along(c.theta, rho, self.ascent(c)))
        return c.local.g_tilde

    def direction(self, c: Client) -> Tensor:
        q = self.gradient(c)
        q = q + self.proximal(c, c.theta) if self.dynamic_regularisation else q
        return q + self.beta * c.message.delta if self.dual_correction else q

    def decoupled_weight(self, c: Client) -> float:
        return self.alpha if self.dynamic_regularisation else 0.0

    def upload(self, c: Client) -> Uploads:
        uploads = super().upload(c)
        scale = c.counted_steps * (1.0 if self.delta_scale == "mean_step" else c.lr)
        return {**uploads, "delta": Sum(c.update, -c.weight / scale)}

    def aggregate(self, server: Server, got: Received) -> None:
        Algorithm.aggregate(self, server, got)
        if self.dynamic_regularisation:
            divisor = server.clients if self.dual_divisor == "all" else server.cohort
            server.state.h = server.state.h + got.h_change / divisor
            server.theta = server.theta + server.state.h
        server.state.delta = got.delta


class FedGloSSForms(FedGloSS):
    """q = g(y + ρ_l unit(g(y))) + α (y - x~ + H_i): with `dual_divisor: product` each round's sum of changes of the
    duals is divided by N M, as in the code (D-87).
    """

    name = "fedgloss@forms"
    dual_divisor: Literal["clients", "product"] = Field("clients", description="divisor of the sum of duals (D-87)")

    def aggregate(self, server: Server, got: Received) -> None:
        cohort = 1 if self.dual_divisor == "clients" else server.cohort
        Algorithm.aggregate(self, server, got)
        server.state.h = server.state.h + got.h_change / (server.clients * cohort)
        server.theta = server.theta + server.state.h
        server.state.ascent = -got.update


class TensorForms(Algorithm):
    """Base of the forms of methods that perturb along a known vector, from which the authors' code takes scalars."""

    shift: Literal["vector", "scalars"] = Field(
        "vector", description="e along that vector, or one of its scalars for each tensor (the code, D-10, D-89)"
    )
    norm: Literal["global", "summed"] = Field(
        "global", description="divisor of e: one norm, or the sum of the tensors' norms (the code, D-11, D-89)"
    )

    def towards(self, ahead: Tensor, layout: Layout) -> Tensor:
        """Return the direction `(P,)` of e, of length 1 unless `shift` or `norm` is the code's."""
        if (self.shift, self.norm) == ("vector", "global"):
            return unit(ahead)
        sizes = list(layout.sizes)
        parts = ahead.split(sizes) if self.shift == "vector" else ahead[: len(sizes)].split(1)
        lengths = torch.stack([torch.linalg.vector_norm(part) for part in parts])
        length = lengths.sum() if self.norm == "summed" else torch.linalg.vector_norm(lengths)
        return torch.cat([part.expand(size) for part, size in zip(parts, sizes, strict=True)]) / (length + 1e-7)


class FedLESAMForms(FedLESAM, TensorForms):
    """q = g(y + e) as the code has it: with `shift: scalars` tensor j is shifted, as a whole, by coordinate j of
    x_old - x (D-10).

    With `norm: summed` ρ is divided by the sum of the lengths of the tensors' parts, or scalars, not by the length of
    all (D-11). With `estimate: server` the server broadcasts its last change, e = -ρ unit(x^t - x^{t-1}) (D-11b), which
    is the same if all clients take part in every round.
    """

    name = "fedlesam@forms"
    estimate: Literal["client", "server"] = Field(
        "client", description="source of the global change: each client's since its last participation, or the server's"
    )

    def server_state(self, theta: Tensor) -> Vectors:
        state = super().server_state(theta)
        return state if self.estimate == "client" else Vectors(state, change=theta.new_zeros(theta.shape))

    def client_state(self, theta: Tensor) -> Vectors:
        return super().client_state(theta) if self.estimate == "client" else super(FedLESAM, self).client_state(theta)

    def message(self, server: Server) -> Vectors:
        message = super().message(server)
        return message if self.estimate == "client" else Vectors(message, change=server.state.change)

    def begin(self, c: Client) -> None:
        if self.estimate == "server":
            back = -c.message.change
        else:
            back = torch.zeros_like(c.theta_0) if c.first else c.state.x_old - c.theta_0
        c.local.e = self.rho * self.towards(back, c.layout)

    def upload(self, c: Client) -> Uploads:
        return super().upload(c) if self.estimate == "client" else super(FedLESAM, self).upload(c)

    def aggregate(self, server: Server, got: Received) -> None:
        before = server.theta
        super().aggregate(server, got)
        if self.estimate == "server":
            server.state.change = server.theta - before


class FedLESAMSForms(FedLESAMS, FedLESAMForms, VariateForms):
    """q = g(y + e) + w (c - c_i) with the forms of `fedlesam@forms` and `scaffold@forms`; the released code has w = 0.1
    (`correction: 0.1`, D-11c).
    """

    name = "fedlesam-s@forms"
    correction: float = Field(1.0, ge=0, description="w: weight of c - c_i in the step (D-11c)")

    def proximal(self, c: Client, theta: Tensor) -> Tensor:
        return self.correction * super().proximal(c, theta)


class FedLESAMDForms(FedLESAMD, FedLESAMForms):
    """q = g(y + e) + α (y - x + H_i) with the forms of `fedlesam@forms`."""

    name = "fedlesam-d@forms"


class FedWMSAMForms(FedWMSAM, TensorForms):
    """q = α (g(y + e) + c - c_i) + (1 - α) Δ as the code has it: `shift: scalars` and `norm: summed`, as in
    `fedlesam@forms` (D-89).

    There e descends (`sign: code`, D-90), and Δ has a factor of the learning rate's decay (`delta_decay`, D-92).
    `target: scaled` has the η that k Δ_i lacks as written (D-91).
    """

    name = "fedwmsam@forms"
    sign: Literal["uphill", "code"] = Field("uphill", description="direction of e (D-90)")
    target: Literal["plain", "scaled"] = Field("plain", description="scaled: k η Δ_i instead of k Δ_i (D-91)")
    delta_decay: bool = Field(False, description="Δ times training.lr_decay, as in the code (D-92)")

    def perturbation(self, c: Client, alpha: Tensor | float) -> Tensor:
        steps = c.step * (c.lr if self.target == "scaled" else 1.0)
        e = self.rho * self.towards(c.theta_0 + steps * self.ahead(c, alpha) - c.theta, c.layout)
        return e if self.sign == "uphill" else -e

    def aggregate(self, server: Server, got: Received) -> None:
        super().aggregate(server, got)
        if self.delta_decay:
            server.state.delta = server.lr_decay * server.state.delta


class FedGEForms(FedGE):
    """q = ∇ CE(W h) or ∇ CE(W h/||h||) by the body, with class vectors from a file.

    The code has BatchNorm in the place of features of length 1 (`feature_norm: model` with `model.feature_norm: batch`,
    D-37). `simplex` reads the class vectors that the authors' code drew (D-118).
    """

    name = "fedge@forms"
    feature_norm: Literal["length", "model"] = Field(
        "length", description="h to length 1, or as the model gives it (the code: model.feature_norm batch, D-37)"
    )
    simplex: Annotated[str | None, FILE] = Field(
        None, description="path of a .npy file with the class vectors m_c as rows; default drawn by the run's seed"
    )

    def initial(self, theta: Tensor, layout: Layout) -> Tensor:
        theta = super().initial(theta, layout)
        if self.simplex is not None:
            weight = layout.views(theta)[self.weight(layout)]
            failure = f"algorithm.simplex: {self.simplex} is not a .npy file of finite numbers (classes, features)"
            with restate(failure, OSError, ValueError, TypeError, EOFError):
                rows = np.load(locate_file("algorithm.simplex", self.simplex), allow_pickle=False)
                if rows.ndim != 2 or not np.isfinite(rows).all():
                    raise ValueError(f"it holds {rows.dtype} {rows.shape}")
            if rows.shape != weight.shape:
                found = f"algorithm.simplex: found {rows.shape}"
                raise UserError(f"{found}; the model's head has {tuple(weight.shape)}")
            weight.copy_(self.scale_w**0.5 * torch.from_numpy(rows.astype(np.float64)))
        return theta

    def logits(self, output: Output) -> Tensor:
        return super().logits(output) if self.feature_norm == "length" else output.logits


class FedGELAForms(FedGELA, FedGEForms):
    """q = ∇ CE(Φ_k W h/||h||) by the body, with the forms of `fedge@forms`; with `softmax: present` eq. 5's softmax,
    over the classes that a client has (D-39).
    """

    name = "fedgela@forms"
    softmax: Literal["all", "present"] = Field("all", description="classes in the local softmax: as the code, or eq. 5")

    def begin(self, c: Client) -> None:
        super().begin(c)
        c.local.absent = counts(c, self.classes(c.layout)) == 0

    def of_client(self, c: Client) -> tuple[Tensor, ...]:
        return *super().of_client(c), c.local.absent

    def adapted(self, z: Tensor, *of_client: Tensor) -> Tensor:
        z = super().adapted(z, *of_client)
        return z if self.softmax == "all" else z.masked_fill(of_client[1], -torch.inf)


class FedSOLForms(FedSOL):
    """q = g(y + e) with e = ρ Λ unit(∇L_p(y)): an adaptive Λ has norm 1 along the first dimension of each parameter
    tensor as in the code (dim0), over each layer, weight and bias together, as in eq. 7 (layer), or over each tensor
    (tensor); the meaning of ρ follows (D-25).
    """

    name = "fedsol@forms"
    lambda_norm: Literal["dim0", "layer", "tensor"] = Field(
        "dim0", description="what has norm 1 in an adaptive Λ: each column of a tensor, as the code; each layer, eq. 7"
    )

    def adapt_radii(self, c: Client) -> Tensor:
        if self.lambda_norm == "dim0":
            return super().adapt_radii(c)
        sizes = list(c.layout.layers.values() if self.lambda_norm == "layer" else c.layout.sizes)
        moved = (c.theta - c.theta_0).abs().split(sizes, dim=-1)
        return torch.cat([normalize(part.unsqueeze(-1), dim=-2).flatten(-2) for part in moved], dim=-1)


VARIANTS: dict[str, type[Algorithm]] = {
    kind.name: kind
    for kind in list(vars().values())
    if isinstance(kind, type) and issubclass(kind, Algorithm) and kind.name.endswith(FORMS)
}
