"""How every figure looks: a paper's column wide, told apart without colour, PNG and PDF."""

import re
from collections.abc import Iterator, Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedray.common.component import Component

WIDTH = 3.3
"""Inches: a column of a two-column paper."""
STYLE: Any = {
    "font.size": 7,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.0,
    "lines.markersize": 3.0,
    "pdf.fonttype": 42,
    "legend.fontsize": 6,
    "legend.frameon": False,
    "axes.grid": True,
    "grid.linewidth": 0.3,
    "grid.alpha": 0.5,
    "axes.axisbelow": True,
    "hatch.linewidth": 0.4,
}
COLOURS = ("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7f7f7f", "#e69f00")
"""Okabe and Ito's, told apart by colour-blind readers."""
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "++++", "oooo", "----")
styled = mpl.rc_context(STYLE)
"""Decorator of whatever draws or writes a figure."""


def styles() -> Iterator[dict[str, Any]]:
    """Of lines. Endless; the first 40 differ in dashes or marker, so also in grey."""
    for colour, dashes, marker in zip(cycle(COLOURS), cycle(DASHES), cycle(MARKERS), strict=False):
        yield {"color": colour, "linestyle": dashes, "marker": marker}


def axes(x: str, y: str, name: str, height: float = 0.75) -> tuple[Figure, Axes]:
    """One panel. height: in column widths. What a label says after a comma is left to the caption."""
    figure = Figure(figsize=(WIDTH, height * WIDTH), layout="constrained")
    panel = figure.subplots()
    panel.set(xlabel=x, ylabel=y.partition(",")[0], title=name)
    return figure, panel


def with_legend(figure: Figure, panel: Axes) -> Figure:
    """The legend, below the panel where there are more lines than fit inside."""
    names = panel.get_legend_handles_labels()[1]
    if len(names) > 6:
        columns = 2 if max(map(len, names)) < 32 else 1
        figure.set_size_inches(WIDTH, figure.get_figheight() + 0.11 * int(np.ceil(len(names) / columns)))
        figure.legend(loc="outside lower center", ncols=columns)
    elif names:
        panel.legend()
    return figure


@styled
def save(figures: Mapping[str, Figure], out: Path, stem: str) -> list[Path]:
    """Write `OUT/STEM-SETTING.png` and `.pdf`; without the setting where there is only one."""
    out.mkdir(parents=True, exist_ok=True)
    paths = []
    for setting, figure in figures.items():
        name = stem if len(figures) == 1 else f"{stem}-{setting}"
        for word, symbol in Component.symbols.items():
            name = name.replace(symbol, word)
        name = re.sub(r"[^\w.=-]+", "-", name)
        for suffix in (".png", ".pdf"):
            paths.append(out / f"{name}{suffix}")
            figure.savefig(paths[-1], dpi=300)
    return paths
