"""A flat vector, split into the model's tensors and joined again."""

from itertools import groupby

import torch

from fedray.models import make_model_spec
from fedray.models.network import Layout, Network


def test_join_is_the_inverse_of_views() -> None:
    """Also for several vectors at once, and for a parameter without dimensions."""
    layout = Layout(("w", "scale", "b"), ((2, 3), (), (2,)))
    for shape in ((9,), (4, 9)):
        theta = torch.arange(torch.Size(shape).numel()).view(shape).float()
        views = layout.views(theta)
        assert views["w"].shape == (*shape[:-1], 2, 3)
        assert torch.equal(layout.join(views), theta)
        assert torch.equal(layout.join(dict(reversed(views.items()))), theta), "the layout's order counts"


def test_matrices_have_two_dimensions_or_more() -> None:
    layout = Layout(("w", "scale", "b", "k"), ((2, 3), (), (2,), (2, 3, 1, 1)))
    assert layout.matrices == ("w", "k")
    network = Network(make_model_spec("mlp").build((1, 8, 8), 10))
    assert all(name.endswith("weight") for name in network.layout.matrices)


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


def test_embeddings_are_known_by_their_type() -> None:
    layout = Network(make_model_spec("char_lstm").build((80,), 90)).layout
    (name,) = layout.embeddings
    assert layout.shapes[layout.names.index(name)][0] == 90
    assert layout.beside_body == layout.heads | {name}
