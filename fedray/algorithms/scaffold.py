"""Control variates: each client corrects its gradient by the difference between the server's and its own variate."""

from typing import Literal, Self

from pydantic import Field, model_validator
from torch import Tensor

from fedray.algorithms.base import Client, Proximal, Received, Server, Sum, Uploads, Vectors
from fedray.algorithms.feddyn import relative_size
from fedray.algorithms.fednova import effective_steps
from fedray.common.errors import UserError


class ControlVariates(Proximal):
    """Base of the methods whose step is q = gradient + c - c_i."""

    bound_to_sgd = "makes variates of updates divided by K η"

    divisor: Literal["steps", "effective"] = Field(
        "steps", description="effective: FedNova's a(K_i) instead of K_i, for local momentum (FedSOL's code)"
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

    def server_state(self, theta: Tensor) -> Vectors:
        return Vectors(c=theta.new_zeros(theta.shape))

    def client_state(self, theta: Tensor) -> Vectors:
        return Vectors(c=theta.new_zeros(theta.shape))

    def message(self, server: Server) -> Vectors:
        return Vectors(c=server.state.c)

    def proximal(self, c: Client, theta: Tensor) -> Tensor:
        return c.message.c - c.state.c

    def upload(self, c: Client) -> Uploads:
        steps = c.counted_steps if self.divisor == "steps" else effective_steps(c.steps, c.momentum)
        change = -c.message.c - c.update / (steps * (c.lr if self.variate_lr == "round" else c.first_lr))
        c.state.c = c.state.c + change
        if self.variates == "uniform":
            return {"c_change": Sum(change, self.size(c))}
        share = c.samples / c.total_samples
        return {"c_change": Sum(change, share), "samples": Sum(change.new_ones(()), share)}

    def aggregate(self, server: Server, got: Received) -> None:
        super().aggregate(server, got)
        change = got.c_change if self.variates == "uniform" else server.cohort * got.c_change / got.samples
        server.state.c = server.state.c + change / server.clients


class Scaffold(ControlVariates):
    """q = g(y) + c - c_i; afterwards c_i <- c_i - c - u_i/(K_i η_t), c stays the mean of all N c_i.

    With local momentum m, u_i/(K_i η_t) is up to 1/(1 - m) times a gradient; FedSOL's code divides instead by the
    number of steps that K_i steps amount to with momentum (`divisor: effective`, D-32).

    As the code has it: FedSOL's adds to c the changes of c_i weighted by samples, (M/N) Σ n_i Δc_i / Σ n_j (`variates:
    samples`, D-32); FedDC's divides by the first round's η (`variate_lr: first`, D-23). With w_i = n_i N/Σ_all n, c is
    in FedExP's the mean of w_i c_i (`scaling: samples`); FedDyn's has the same c, and steps along c/w_i - c_i
    (`correction: scaled`, D-127). These three are weights of the same changes, so two of them together are refused.
    """

    name = "scaffold"
    paper = (
        "Karimireddy et al., SCAFFOLD: stochastic controlled averaging for federated learning, ICML 2020, "
        "algorithm 1, option II"
    )
    idea = "control variates cancel client drift"
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
        if self.correction == "plain":
            return super().proximal(c, theta)
        return c.message.c / relative_size(c) - c.state.c
