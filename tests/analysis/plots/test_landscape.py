"""The loss in a plane, drawn for several models."""

import numpy as np
from mpl_toolkits.mplot3d import Axes3D

from fedray.papers.commands.sharpness import draw_contours, draw_surfaces

STEPS = np.linspace(-1, 1, 3)
BOWL = np.add.outer(STEPS**2, 4 * STEPS**2)


def test_panels_have_the_same_levels_and_axis_upwards() -> None:
    """A bowl and one three times as deep: each alone would reach from the lightest to the darkest."""
    losses = [BOWL, 3 * BOWL]
    flat = draw_contours(["a", "b"], "random", STEPS, losses)
    panels = flat.axes[:2]
    assert [area.get_title() for area in panels] == ["a", "b"]
    levels = [area.collections[0].levels.tolist() for area in panels]  # type: ignore[attr-defined]
    assert levels[0] == levels[1]
    assert (levels[0][0], levels[0][-1]) == (0, 15)
    assert panels[0].get_xlabel() == "along random direction 1"
    steep = draw_surfaces(["a", "b"], "eigen", STEPS, losses)
    for area in steep.axes:
        assert isinstance(area, Axes3D)
        assert area.get_zlim() == (0, 15)
        assert area.get_xlabel() == "eigenvector 1"
