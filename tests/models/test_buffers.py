"""The rule for BatchNorm's running statistics: averaged with the weights of the aggregation."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedray.datasets.dataset import Dataset
from tests import small


class TinyBatchNorm(nn.Module):
    """Running statistics of a single input feature, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(1)
        self.classifier = nn.Linear(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.norm(x))


@pytest.mark.parametrize(
    ("aggregation", "mean", "variance"),
    [
        ("samples", 0.1 * (2 / 6 * 1 + 4 / 6 * 7), 0.9 + 0.1 * (2 / 6 * 2 + 4 / 6 * 4 / 3)),
        ("uniform", 0.1 * (1 / 2 * 1 + 1 / 2 * 7), 0.9 + 0.1 * (1 / 2 * 2 + 1 / 2 * 4 / 3)),
    ],
)
@pytest.mark.parametrize("algorithm", ["fedavg", {"name": "fedsam", "rho": 0.1}])
def test_buffers_are_averaged_like_the_update(
    algorithm: object,
    aggregation: str,
    mean: float,
    variance: float,
) -> None:
    """One full-batch step. Client 0 holds (0, 2): mean 1, unbiased variance 2; client 1 (6, 6, 8, 8): 7 and 4/3.

    BatchNorm starts at mean 0, variance 1 and moves by its momentum 0.1: means 0.1 · 1 and 0.1 · 7, variances
    0.9 + 0.1 · 2 and 0.9 + 0.1 · 4/3. The server takes their average with weights 2/6 and 4/6 (samples) or 1/2 each
    (uniform). FedSAM's second forward pass of the step moves nothing: the result is the same.
    """
    x = np.array([[0], [2], [6], [6], [8], [8]], dtype=np.float32)
    y = np.array([0, 1, 0, 1, 0, 1])
    data = Dataset("d", x, y, x, y, 2, client_train=np.array([0, 0, 1, 1, 1, 1]))
    training = {"rounds": 1, "local_steps": 1, "batch_size": "full", "aggregation": aggregation}
    model = "tests.models.test_buffers:TinyBatchNorm"
    simulation = small.simulation(algorithm, (2, 2), model, "natural", arrays=data, training=training)
    simulation.step()
    torch.testing.assert_close(simulation.state.buffers, torch.tensor([mean, variance]))
