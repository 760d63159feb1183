"""A flat vector, split into the model's tensors and joined again."""

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


def test_embeddings_are_known_by_their_type() -> None:
    layout = Network(make_model_spec("char_lstm").build((80,), 90)).layout
    (name,) = layout.embeddings
    assert layout.shapes[layout.names.index(name)][0] == 90
    assert layout.beside_body == layout.heads | {name}
