"""A flat vector, split into the model's tensors and joined again; BatchNorm's statistics, averaged as the update."""

from itertools import groupby

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedray.datasets.dataset import Dataset
from fedray.models import make_model_spec
from fedray.models.network import Layout, Network
from tests import small


def test_join_is_the_inverse_of_views() -> None:
    """Also for several vectors at once, and for a parameter without dimensions."""
    layout = Layout(("w", "scale", "b"), ((2, 3), (), (2,)))
    for shape in ((9,), (4, 9)):
        theta = torch.arange(torch.Size(shape).numel()).view(shape).float()
        views = layout.views(theta)
        assert views["w"].shape == (*shape[:-1], 2, 3)
        assert torch.equal(layout.join(views), theta)
        assert torch.equal(layout.join(dict(reversed(views.items()))), theta), "the layout's order counts"


def test_the_parameters_of_a_layer_lie_side_by_side() -> None:
    """A layer is a module, with a weight of 7 · 64 and a bias of 7; what the model itself holds is one by itself."""
    models = {"mlp": (1, 8, 8), "resnet18": (3, 32, 32), "sl_vit": (3, 32, 32), "char_lstm": (80,)}
    for name, shape in models.items():
        layout = Network(make_model_spec(name).build(shape, 7)).layout
        parts = [path.rpartition(".")[0] or path for path in layout.names]
        assert [layer for layer, _ in groupby(parts)] == list(layout.layers), name
        assert sum(layout.layers.values()) == layout.size
    assert Network(make_model_spec({"name": "mlp", "hidden": []}).build((1, 8, 8), 7)).layout.layers == {"1": 7 * 65}
    assert {"class_token": 192, "positions": 17 * 192}.items() <= Network(
        make_model_spec("sl_vit").build((3, 32, 32), 7)
    ).layout.layers.items()


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
    model = "tests.models.test_network:TinyBatchNorm"
    simulation = small.simulation(algorithm, (2, 2), model, "natural", arrays=data, training=training)
    simulation.step()
    torch.testing.assert_close(simulation.state.buffers, torch.tensor([mean, variance]))
