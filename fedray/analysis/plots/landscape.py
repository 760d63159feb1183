"""The loss in a plane through trained models: contours with the same levels in each panel, and surfaces."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from mpl_toolkits.mplot3d import Axes3D

from fedray.analysis.plots.style import ACROSS, WIDE, WIDTH, make_panels, styled

WORDS = {"random": "random direction", "eigen": "eigenvector"}
HEIGHT = 2.0
"""Inches: of a panel."""


@styled
def draw_contours(titles: Sequence[str], kind: str, steps: np.ndarray, losses: Sequence[np.ndarray]) -> Figure:
    """Draw contours of the loss, a panel per model; all have the same levels.

    Args:
        titles: of the panels, which differ.
        kind: `random` or `eigen`, the directions.
        steps: float `(n,)`, the grid along each direction.
        losses: of each model, float `(n, n)`; the first index is along the first direction.
    """
    drawn = make_panels(titles, f"along {WORDS[kind]} 1", f"along {WORDS[kind]} 2", height=HEIGHT)
    # Equal areas between the levels, however steep the losses are.
    levels = np.unique(np.quantile(np.stack(losses), np.linspace(0, 1, 16)))
    for area, loss in zip(drawn.main.values(), losses, strict=True):
        filled = area.contourf(steps, steps, loss.T, levels, cmap="Greys")
        area.contour(steps, steps, loss.T, levels, colors="black", linewidths=0.3)
        area.plot(0, 0, marker="+", color="red", markersize=6)
        area.grid(visible=False)
    areas: list[Axes] = list(drawn.main.values())
    drawn.figure.colorbar(filled, ax=areas, label="training loss", ticks=levels[::3], format="%.3g", spacing="uniform")
    return drawn.figure


@styled
def draw_surfaces(titles: Sequence[str], kind: str, steps: np.ndarray, losses: Sequence[np.ndarray]) -> Figure:
    """Draw the loss over the plane in three dimensions, as `contours`; all panels have the same axis upwards."""
    across = min(len(titles), ACROSS)
    down = -(-len(titles) // across)
    figure = Figure(figsize=(WIDTH if across == 1 else WIDE, down * 2.6), layout="constrained")
    low, high = min(map(np.min, losses)), max(map(np.max, losses))
    first, second = np.meshgrid(steps, steps, indexing="ij")
    for place, (title, loss) in enumerate(zip(titles, losses, strict=True)):
        area: Axes3D = figure.add_subplot(down, across, place + 1, projection="3d")
        area.plot_surface(first, second, loss, cmap="viridis", vmin=low, vmax=high, rstride=1, cstride=1, linewidth=0)
        area.set_zlim(low, high)
        area.set_title(title, pad=-10)
        area.set_xlabel(f"{WORDS[kind]} 1", labelpad=-6)
        area.set_ylabel(f"{WORDS[kind]} 2", labelpad=-6)
        area.set_zlabel("training loss", labelpad=-6)
        area.tick_params(pad=-3)
        area.locator_params(nbins=5)
        area.set_box_aspect(None, zoom=0.78)
    return figure
