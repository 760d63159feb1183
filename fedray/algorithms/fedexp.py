"""FedExP: the server extrapolates along the average update. A setting of training, and a name for FedAvg with it."""

from typing import Literal

from pydantic import Field
from torch import Tensor

from fedray.algorithms.base import Algorithm
from fedray.common.component import Checked


class Extrapolation(Checked):
    """The step of FedExP: η_g is multiplied by max(1, Σ π_i ||u_i||²/(2 (||U||² + ε_t))), U = Σ π_i u_i."""

    epsilon: float = Field(
        1e-3,
        ge=0,
        description="ε: keeps the step short where the average update is small",
        json_schema_extra={"paper": {"CIFAR, CINIC (FedExP's code)": 1e-3, "EMNIST (FedExP's code)": 0.1}},
    )
    epsilon_scale: Literal["one", "cohort"] = Field(
        "one", description="cohort: M ε in place of ε, as in the authors' code (D-80)"
    )
    test: Literal["average", "last"] = Field(
        "average", description="the model that is tested: the mean of the last two iterates, or the last (D-82)"
    )

    def factor(self, squares: Tensor, update: Tensor, decay: float, cohort: int) -> float:
        """What η_g is multiplied by.

        Args:
            squares: Σ π_i ||u_i||², one number.
            update: U of the shared parameters `(S,)`.
            decay: η_t/η_0; ε_t = ε decay² (D-80).
            cohort: M.

        Returns:
            At least 1, which is FedAvg's step.
        """
        epsilon = self.epsilon * decay**2 * (1 if self.epsilon_scale == "one" else cohort)
        below = 2 * (float(update.double().square().sum()) + epsilon)
        return max(1.0, float(squares) / below) if below else 1.0


class FedExP(Extrapolation, Algorithm):
    """q = g(y); x <- x + η_g max(1, Σ π_i ||u_i||²/(2 (||U||² + ε_t))) U, ε_t = ε (η_t/η_0)².

    FedAvg with `training.server_step: fedexp`, which combines with every method that averages. Up goes one number
    beside u_i. Tested is the mean of the last two iterates (in round 1 the first), training goes on from the last
    (D-82). Readings: ε as in the paper, without the code's factor M (D-80); π_i in U and in the mean of squares, where
    the paper is uniform (D-81). The authors' "fedavgm(exp)" never applies its momentum (D-83). The grid of ε and its
    decay were not read again in the paper [M].
    """

    name = "fedexp"
    paper = "Jhunjhunwala, Wang and Joshi, FedExP: speeding up federated averaging via extrapolation, ICLR 2023"
    idea = "a server step that grows when the clients' updates disagree"
