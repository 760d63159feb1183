"""Probes of the quantities in the papers' propositions and theorems."""

from typing import cast

import torch
from pydantic import Field
from torch import Tensor

from fedray.algorithms.base import Algorithm
from fedray.algorithms.fedsol import FedSOL
from fedray.client import LocalClient
from fedray.common.errors import UserError
from fedray.models.network import Layout, Output
from fedray.probes.probe import EvaluatedRound, Probe, TrainedClient
from fedray.probes.proximal import measure_propositions


class Propositions(Probe):
    """Both sides of FedSOL's propositions 1 and 2 (equations 11 and 12) at y_K, with the method's perturbation."""

    name = "propositions"
    metrics = {
        "conflict": "⟨∇L, ∇L_p⟩",
        "curvature": "curvature of the local loss along the perturbation",
        "proposition1_left": "change of the proximal loss, first order (eq. 11, left)",
        "proposition1_right": "change of the proximal loss (eq. 11, right)",
        "proposition1_plain": "change of the proximal loss by a plain step, first order",
        "proposition2_left": "change of the local loss (eq. 12, left)",
        "proposition2_right": "change of the local loss by a plain step at y + e/2 (eq. 12, right)",
        "proposition2_plain": "change of the local loss by a plain step at y",
    }

    def check(self, algorithm: Algorithm) -> None:
        if not isinstance(algorithm, FedSOL) or (algorithm.strategy, algorithm.proximal_name) != ("A1", "kl"):
            raise UserError(
                "evaluation.probes: propositions are FedSOL's (fedsol with strategy A1 and proximal kl); found "
                f"{algorithm.make_label()}"
            )

    def of_client(self, seen: TrainedClient) -> dict[str, float]:
        return measure_propositions(seen.c, cast(FedSOL, seen.algorithm))


class StepDivergence(Probe):
    """`divergence_step_K`: (1/M) Σ_i ‖y_ik - mean_j y_jk‖² after K local steps, the subject of FedTOGA's theorem 1."""

    name = "step_divergence"
    metrics = {"divergence_step_*": "divergence of local models, mean square distance from their mean after local step"}
    lower_is_better = frozenset(metrics)
    steps: tuple[int, ...] = Field(
        (1, 2, 5, 10, 20, 50, 100), description="k: numbers of local steps; each takes a vector per client"
    )

    def check(self, algorithm: Algorithm) -> None:
        if min(self.steps, default=0) < 1:
            raise UserError(f"evaluation.probes: step_divergence.steps: found {list(self.steps)}; numbers from 1")
        if algorithm.shares == "none":
            raise UserError(f"evaluation.probes: step_divergence compares with others; {algorithm.name} shares nothing")

    def recorded_steps(self) -> frozenset[int]:
        return frozenset(self.steps)

    def sums_of_client(self, c: LocalClient) -> dict[str, Tensor]:
        shared = c.network.index(c.shares)
        moved = {k: (theta - c.theta_0)[shared] for k, theta in c.path.items()}
        sums = {f"u{k}": u for k, u in moved.items()}
        sums |= {f"square{k}": u.double().square().sum() for k, u in moved.items()}
        return sums | {f"count{k}": torch.ones(()) for k in moved}

    def of_round(self, seen: EvaluatedRound) -> dict[str, float]:
        """By Σ_i ‖u_i - mean u‖² = Σ_i ‖u_i‖² - M ‖mean u‖², for the steps that at least two clients made."""
        sums = seen.client_sums.get(self.name, {})
        result = {}
        for k in self.steps:
            count = float(sums.get(f"count{k}", 0.0))  # the part of the cohort that made k steps
            if round(count * len(seen.weights)) > 1 and f"u{k}" in sums:
                mean = sums[f"u{k}"].double() / count
                square = float(sums[f"square{k}"]) / count - float(mean.square().sum())
                result[f"divergence_step_{k}"] = max(square, 0.0)
        return result


class Margins(Probe):
    """Of the global model: `spectral_complexity`, Q(F) = Π_l ‖W_l‖² Σ_l ‖W_l‖_F²/‖W_l‖² over its weight matrices, and
    `margin_risk`, the share of test samples whose margin is at most γ (FedSAM, theorem 3.5 and equation 5).
    """

    name = "margins"
    metrics = {
        "spectral_complexity": "Q(F), logarithm to base 10",
        "margin_risk": "test samples with a margin of at most γ in %",
    }
    lower_is_better = frozenset(metrics)
    gamma: float = Field(1.0, ge=0, description="γ: the margin, in units of logits")

    def check(self, algorithm: Algorithm) -> None:
        if algorithm.keeps != "none":
            raise UserError(f"evaluation.probes: margins are of the global model; {algorithm.name} has none")

    def test_sums(self, output: Output, y: Tensor, classes: int) -> Tensor:
        """Count the samples with z_y - max_{j≠y} z_j ≤ γ, and all samples."""
        z = output.logits
        own = z.gather(1, y[:, None]).squeeze(1)
        others = z.scatter(1, y[:, None], -torch.inf).amax(1)
        small = (own - others <= self.gamma).sum()
        return torch.stack([small, torch.tensor(len(y), device=small.device)]).float()

    def of_round(self, seen: EvaluatedRound) -> dict[str, float]:
        found = {"spectral_complexity": measure_spectral_complexity(seen.theta, seen.layout)}
        if self.name in seen.sums:
            small, samples = seen.sums[self.name].double().tolist()
            found["margin_risk"] = 100 * small / samples
        return found


def measure_spectral_complexity(theta: Tensor, layout: Layout) -> float:
    """Return log10 of Π_l ‖W_l‖² Σ_l ‖W_l‖_F²/‖W_l‖², ‖·‖ the spectral norm; NaN if a matrix is 0.

    A weight with several dimensions is a matrix of its first one by all others, a convolution's kernels one per row.
    Vectors (biases, norms' scales) do not count.
    """
    matrices = [w.double().flatten(1) for w in layout.views(theta).values() if w.ndim > 1]
    norms = torch.stack([torch.linalg.matrix_norm(w, 2) for w in matrices])
    ratios = torch.stack([w.square().sum() for w in matrices]) / norms.square()
    return float((2 * norms.log10().sum()) + ratios.sum().log10())


class GradientNorm(Probe):
    """`gradient_norm`: ‖∇f(x)‖ of the new global model, f = (1/N) Σ f_i over all clients' training samples."""

    name = "gradient_norm"
    metrics = {"gradient_norm": "norm of the full gradient at the global model"}
    lower_is_better = frozenset(metrics)
    needs_gradient = True

    def check(self, algorithm: Algorithm) -> None:
        if algorithm.keeps != "none":
            raise UserError(f"evaluation.probes: gradient_norm is of the global model; {algorithm.name} has none")

    def of_round(self, seen: EvaluatedRound) -> dict[str, float]:
        return {} if seen.gradient is None else {"gradient_norm": float(torch.linalg.vector_norm(seen.gradient))}
