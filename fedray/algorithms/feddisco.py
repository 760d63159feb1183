"""FedDisco: clients with unbalanced labels weigh less. A method, and an average for other methods."""

from typing import Literal

import numpy as np
from pydantic import Field

from fedray.algorithms.base import Algorithm, Cohort
from fedray.components.base import option


class FedDisco(Algorithm):
    """q = g(y); x <- x + η_g Σ π_i u_i with π_i ∝ max(0, p_i - a d_i + b), p_i = n_i/Σ n over the cohort.

    FedAvg with `training.aggregation: feddisco`, which combines with every method that averages. d_i is the distance
    between the client's class shares and balanced ones, in `metric`; the server computes it from label counts, one
    number per client. These weights apply to everything that π weights, including running statistics and training loss.
    Readings: only kl is divided by its sum, as in the code (D-84); if no weight is positive they are p, where the code
    fails (D-85). The metric of the paper's tables and its grids of a and b were not read again [S].
    """

    name = "feddisco"
    paper = "Ye et al., FedDisco: federated learning with discrepancy-aware collaboration, ICML 2023"
    idea = "clients with unbalanced labels weigh less"
    stacks = True
    a: float = option(0.5, ge=0, description="weight of the discrepancy", paper={"FedDisco's code": 0.5})
    b: float = option(0.1, ge=0, description="added to every weight", paper={"FedDisco's code": 0.1})
    metric: Literal["l2", "l1", "cosine", "kl"] = Field(
        "l2",
        description="d_i between the client's class shares and 1/C; kl is divided by its sum over the cohort (D-84)",
    )

    def weights(self, cohort: Cohort) -> np.ndarray:
        """Return p if no weight would be positive (D-85)."""
        sizes = cohort.samples
        p = sizes / sizes.sum()
        raw = np.maximum(0.0, p - self.a * self._discrepancies(cohort.count_labels() / sizes[:, None]) + self.b)
        result: np.ndarray = raw / raw.sum() if raw.sum() > 0 else p
        return result

    def _discrepancies(self, shares: np.ndarray) -> np.ndarray:
        """Return the discrepancies d `(M,)` of class shares `(M, C)`."""
        classes = shares.shape[1]
        apart: np.ndarray = shares - 1 / classes
        if self.metric == "l2":
            distance: np.ndarray = np.linalg.norm(apart, axis=1)
        elif self.metric == "l1":
            distance = np.abs(apart).sum(1)
        elif self.metric == "cosine":
            distance = 1 - shares.sum(1) / (np.linalg.norm(shares, axis=1) * np.sqrt(classes))
        else:
            divergence = np.where(shares > 0, shares * np.log(np.maximum(shares, 1e-300) * classes), 0.0).sum(1)
            distance = divergence / max(divergence.sum(), 1e-300)
        return distance
