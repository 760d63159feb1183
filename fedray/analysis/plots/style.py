"""Style of all figures: as wide as a paper's column, distinguishable without colour, PNG and PDF.

A figure's label (`Figure.set_label`) is for its caption: the meaning of bands and bars, the number of seeds, what it
leaves out. It is not drawn: the command prints it, the report shows it below the picture, and the files hold it.
"""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from fedray.cells.looks import COLOURS, shade
from fedray.common.output import OutputFile
from fedray.components.base import Component

WIDTH = 3.25
"""Inches: width of a column of a two-column paper, ICML's."""
WIDE = 6.75
"""Inches: width of both columns."""
ACROSS, BLOCKS_ACROSS = 3, 4
"""Maximum number of panels side by side, for one and for several quantities."""
MAIN, ZOOM = 1.6, 0.95
"""Inches: height of a panel, and of the lower one that shows a part of it."""
LETTER = 0.05
"""Inches: approximate width of a letter in a legend."""
UPRIGHT = 0.05
"""Inches: approximate width of a letter along an axis."""
OVER = 0.065
"""Inches: about the width of a letter in a title."""
HANDLE = 0.5
"""Inches: the piece of line before a name in a legend, and the space around it."""
LABEL = 0.08
"""Part of an axis that a tick's label takes."""
MARGIN = 0.06
"""Part of an axis left free next to the outermost values."""
FILLED = 0.5
"""Part of a common axis that each panel's values must fill."""
MARKS = 6
"""Approximate number of markers per line."""
STYLE: Any = {
    "font.size": 7,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.0,
    "lines.markersize": 3.0,
    "pdf.fonttype": 42,
    "legend.fontsize": 6,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "axes.grid": True,
    "grid.linewidth": 0.3,
    "grid.alpha": 0.5,
    "axes.axisbelow": True,
    "hatch.linewidth": 0.4,
    "text.parse_math": False,  # names of methods and options may have a $
    "text.usetex": False,  # and a % or _; a user's matplotlibrc may ask for a LaTeX that this machine lacks
}
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "++++", "oooo", "----")
BROAD, STEP, BROADEST, BELOW = 1.6, 0.6, 2.8, 1.9
"""Width of the last method with one line next to others with several, what each before it has more, and the most; their
height. So each is seen on both sides of a line that covers it."""
FEW = 3
"""Maximum number of lines that also differ in width if each method has one."""
PLAIN = FuncFormatter(lambda value, _: f"{value:g}")
Figures = dict[str, Figure]
"""Data set and model -> figure with a panel per setting; the key is empty if all runs share both."""
styled = mpl.rc_context(STYLE)
"""Decorator of all functions that draw or write a figure."""


def choose_styles(lines: Iterable[tuple[str, str]]) -> dict[str, dict[str, Any]]:
    """Return label -> style of each line, given its label and method.

    A method has a colour (`gid`), its values have shades of it, dashes and markers. The first 40 lines differ in dashes
    or marker, so also in grey. If some methods have several lines, others are broad, and the first ones the broadest;
    so are the first of a few lines. Lines of a single method have a colour each.
    """
    colours, places, used = dict[str, int](), Counter[str](), set[tuple[int, int, int]]()
    styles = dict[str, dict[str, Any]]()
    pairs = [*dict.fromkeys(lines)]
    if len({method for _, method in pairs}) == 1:
        pairs = [(label, label) for label, _ in pairs]
    of_method = Counter(method for _, method in pairs)
    for label, method in pairs:
        colour = colours.setdefault(method, len(colours)) % len(COLOURS)
        dash = (places[method] + colours[method] // len(COLOURS)) % len(DASHES)
        places[method] += 1
        markers = (len(styles) + k for k in range(len(MARKERS)))
        grey = 0 if len(styles) < len(DASHES) * len(MARKERS) else colour + 1
        looks = [(grey, dash, marker % len(MARKERS)) for marker in markers]
        looks += [(grey, other, marker) for other in range(len(DASHES)) for marker in range(len(MARKERS))]
        look = next((look for look in looks if look not in used), looks[0])
        used |= {(0, *look[1:]), (colour + 1, *look[1:])}
        of = of_method[method]
        shown = COLOURS[colour] if of == 1 else shade(COLOURS[colour], (places[method] - 1) / (of - 1))
        line = {"linestyle": DASHES[look[1]], "marker": MARKERS[look[2]]}
        styles[label] = {"color": shown, "gid": COLOURS[colour], **line}
    single = [label for label, method in pairs if of_method[method] == 1]
    if len(single) < len(pairs) or len(pairs) <= FEW:
        narrowest = BROAD if len(single) < len(pairs) else STYLE["lines.linewidth"]
        for above, label in enumerate(reversed(single)):
            width = min(narrowest + STEP * above, BROADEST)
            styles[label] |= {"linewidth": width, "markersize": width + 2, "zorder": BELOW}
    return styles


def make_axes(x: str, y: str, name: str, height: float = 0.75) -> tuple[Figure, Axes]:
    """Return one panel. height: in column widths. The part of a label after a comma is left to the caption."""
    figure = Figure(figsize=(WIDTH, height * WIDTH), layout="constrained")
    panel = figure.subplots()
    panel.set(xlabel=x, ylabel=wrap(y, min(height, 0.6) * WIDTH), title=wrap_title(name, 0.8 * WIDTH))
    return figure, panel


@dataclass(frozen=True)
class Panels:
    """Panels of equal axes in one figure, by name; below each, if requested, one for a part of it."""

    figure: Figure
    main: dict[str, Axes]
    zoom: dict[str, Axes]


def make_panels(names: Sequence[str], x: str, y: str, height: float = MAIN, level: bool = True) -> Panels:
    """Return a panel per name, as wide as a column or, for two or more, as the page; all share both axes.

    x and y: labels of the axes; the part of y after a comma is left to the caption. height: of a panel, inches. level:
    False if `level_panels` decides about the axis upwards.
    """
    return make_blocks(names, x, [y], height=height, level=level)[0]


def make_rows(names: Sequence[str], x: str, rows: Sequence[str]) -> Panels:
    """Return panels with a place on the axis upwards for each row, the first on top; its names take at most a third."""
    width = (WIDTH if len(names) == 1 else WIDE) / 3
    texts = [_fill(row, int(width / UPRIGHT)) for row in rows]
    height = 0.5 + len(rows) * max(0.22, 0.12 * max(text.count("\n") + 1 for text in texts))
    drawn = make_panels(names, _fill(x, int(1.85 * width / min(len(names), ACROSS) / UPRIGHT)), "", height)
    for area in drawn.main.values():
        area.set_yticks(range(len(rows)), texts)
        area.set_ylim(len(rows) - 0.5, -0.5)
        area.grid(axis="y", visible=False)
    return drawn


def make_blocks(
    names: Sequence[str], x: str, labels: Sequence[str], zoom: bool = False, height: float = MAIN, level: bool = True
) -> list[Panels]:
    """Return a block of `make_panels` for each label of an axis upwards, in one figure; only a block's panels share it.

    Blocks of one panel are side by side, other blocks one below the other. With `zoom` each has a lower panel, which
    shares only the axis across, unless `level_panels` finds that these fill a common one: a zoom on 90 % shows nothing
    of 40 %.
    """
    aside = len(names) == 1 and len(labels) > 1
    across = 2 if aside else min(len(names), ACROSS if len(labels) == 1 else BLOCKS_ACROSS)
    down, parts = math.ceil(len(labels if aside else names) / across), (height, ZOOM) if zoom else (height,)
    lines = down if aside else down * len(labels)
    size = (WIDTH if across == 1 else WIDE, lines * (sum(parts) + 0.4) + 0.1)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.add_gridspec(lines * len(parts), across, height_ratios=parts * lines)
    found, start = [], None
    for block, label in enumerate(labels):
        drawn, first = Panels(figure, {}, {}), None
        for place, name in enumerate(names):
            row, column = divmod(block if aside else block * down * across + place, across)
            area = drawn.main[name] = figure.add_subplot(
                grid[row * len(parts), column], sharex=start, sharey=first if level else None
            )
            start, first, leftmost = start or area, first or area, aside or not column
            area.set(title=wrap_title(name, size[0] / across), ylabel=wrap(label, height) if leftmost else "")
            area.tick_params(labelleft=leftmost)
            lowest = area
            if zoom:
                lowest = drawn.zoom[name] = figure.add_subplot(
                    grid[row * 2 + 1, column], sharex=next(iter(drawn.zoom.values()), None)
                )
                lowest.tick_params(labelleft=leftmost)
                lowest.set_ylabel(wrap(label, ZOOM) if leftmost else "")
            lowest.set_xlabel(_fill(x, int(size[0] / across / UPRIGHT)))
        found.append(drawn)
    return found


def level_panels(areas: Sequence[Axes]) -> bool:
    """Give panels one axis upwards, with labels at the left, unless that would leave most of a panel empty.

    Return False if each keeps its own.
    """
    limits = [area.get_ylim() for area in areas]
    low, high = min(limits)[0], max(top for _, top in limits)
    if any(top - bottom < FILLED * (high - low) for bottom, top in limits):
        for area in areas:
            area.tick_params(labelleft=True)
        return False
    for area in areas:
        area.set_ylim(low, high)
    return True


def wrap(label: str, height: float) -> str:
    """A label in lines that fit next to a panel, without what it says after a comma."""
    return _fill(label.partition(",")[0], int(height / UPRIGHT))


def wrap_title(name: str, width: float) -> str:
    """A title in lines that fit above a panel of so many inches."""
    return _fill(name, int(width / OVER))


def _fill(text: str, letters: int) -> str:
    """Break its lines into shorter ones."""
    return "\n".join(fill(line, letters) for line in text.split("\n"))


def with_legend(figure: Figure, *panels: Axes) -> Figure:
    """Return the figure with the legend below its panels, where it covers no line; it grows by that."""
    found: dict[str, Any] = {}
    for panel in panels:
        for handle, name in zip(*panel.get_legend_handles_labels(), strict=True):
            found.setdefault(name, handle)
    if not found:
        return figure
    width = figure.get_figwidth()
    texts = [_fill(name, int((width - HANDLE) / LETTER)) for name in found]
    letters = max(len(line) for text in texts for line in text.split("\n"))
    columns = min(max(1, int(width / (LETTER * letters + HANDLE))), len(found))
    legend = figure.legend([*found.values()], texts, loc="outside lower center", ncols=columns)
    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    height = legend.get_window_extent(renderer).height / figure.dpi
    figure.set_size_inches(width, figure.get_figheight() + height)
    return figure


def thin_markers(points: int, place: int, lines: int) -> tuple[int, int]:
    """Return which of a line's points have a marker (`markevery`): about MARKS or fewer, at least two, others on each
    line."""
    step = max(1, math.ceil(points / MARKS), min(lines, points // 2))
    return place * step // max(lines, 1) % step, step


def set_round_ticks(area: Axes, first: float, last: float, most: int = 5) -> None:
    """Set ticks at even distances along the axis across, at most of so many steps, and only at rounds."""
    nice = MaxNLocator(most, integer=True, steps=[1, 2, 5, 10]).tick_values(first, last)
    kept = [tick for tick in nice if first <= tick <= last]
    area.xaxis.set_major_locator(FixedLocator(kept if len(kept) > 1 else sorted({first, last})))
    area.xaxis.set_major_formatter(PLAIN)


def set_value_ticks(area: Axes, values: Iterable[float]) -> None:
    """Set a tick at each of the values, on a logarithmic axis if suitable, with labels that fit."""
    found = sorted(set(values))
    place = math.log if is_logarithmic(pd.Series(found)) else float
    if place is math.log:
        area.set_xscale("log")
    room = LABEL * (place(found[-1]) - place(found[0]))
    kept = [found[-1]]
    for value in reversed(found[:-1]):
        if place(kept[-1]) - place(value) >= room:
            kept.append(value)
    margin = MARGIN * (place(found[-1]) - place(found[0]))
    back = math.exp if place is math.log else float
    area.set_xlim(back(place(found[0]) - margin), back(place(found[-1]) + margin))
    area.xaxis.set_major_locator(FixedLocator(found))
    area.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:g}" if min(found, key=lambda one: abs(one - value)) in kept else "")
    )
    area.xaxis.set_minor_locator(NullLocator())


def is_logarithmic(numbers: pd.Series) -> bool:
    """Return True if a logarithmic axis suits the numbers: they are positive and span a decade."""
    return bool(numbers.min() > 0 and numbers.max() >= 10 * numbers.min())


def draw_fields(
    area: Axes, grid: np.ndarray, digits: int, scale: Normalize | None = None, best: Collection[Any] = (), **text: Any
) -> AxesImage:
    """Draw the numbers of a table on fields of grey, the smallest black, hatched where there is none.

    best: row and column of each bold one. scale: of several tables, None for that of this one. A number is black or
    white: at 0.38 of the way from black to white both have the same contrast, 4.6 : 1.
    """
    image = area.imshow(grid, origin="lower", aspect="auto", cmap="Greys_r", norm=scale)
    for (row, column), value in np.ndenumerate(grid):
        if not math.isnan(value):
            colour = "white" if np.asarray(image.norm(value)).item() < 0.38 else "black"
            look = {"weight": "bold" if [row, column] in best else "normal", "color": colour} | text
            area.text(column, row, f"{value:.{digits}f}", ha="center", va="center", **look)
    area.patch.set(hatch="//", edgecolor="0.7")
    area.grid(visible=False)
    return image


def describe_seeds(counts: Iterable[int], what: str, cells: pd.DataFrame | None = None) -> str:
    """Return the label of a figure; what: the bands or bars that it has, empty for none. cells: those behind bars."""
    seeds = sorted(set(counts))
    if not seeds or seeds == [1]:
        return "one seed"
    number = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    if not what:
        return f"mean over {number} seeds"
    paired = ""
    if cells is not None and (cells.groupby("_column")["_row"].nunique() > 1).any():
        places = cells.groupby([key for key in ("_column", "_row", "_x") if key in cells], dropna=False)
        of_setting = places["seed"].agg(frozenset).groupby("_column")  # the seeds of each row, at each place across
        paired = " that methods share" if (of_setting.nunique() == 1).all() else ""
    return f"{what}: ± standard deviation over {number} seeds{paired}"


@styled
def save(figures: Mapping[str, Figure], out: Path, stem: str, overwrite: bool = False) -> dict[Path, Figure]:
    """Write `OUT/STEM-SETTING.png` and `.pdf`, or without the setting if there is only one. Raises UserError.

    A name that another setting has is numbered. Return each file's figure.
    """
    written = dict[Path, Figure]()
    for setting, figure in figures.items():
        text = stem if len(figures) == 1 else f"{stem}-{setting}"
        for word, symbol in Component.symbols.items():
            text = text.replace(symbol, word)
        name = re.sub(r"[^\w-]+", "-", text.replace(".", "_"))  # LaTeX reads a second dot as a suffix
        while out / f"{name}.png" in written:
            name += "-2"
        for suffix in (".png", ".pdf"):
            OutputFile("--out", out / f"{name}{suffix}", (suffix,), overwrite).draw(figure, dpi=300)
            written[out / f"{name}{suffix}"] = figure
    return written


def split_figures(cells: pd.DataFrame) -> Iterator[tuple[str, list[tuple[str, pd.DataFrame]]]]:
    """Yield data set and model -> settings with their cells; the first is empty if all runs share both."""
    for name, group in cells.groupby("_figure", sort=False):
        yield str(name), [(str(setting), panel) for setting, panel in group.groupby("_column", sort=False)]


def iter_methods(cells: pd.DataFrame, panel: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield every method of the sweep, so that styles agree across figures, with its cells of this panel, if any."""
    for method in dict.fromkeys(cells["_row"]):
        yield str(method), panel[panel["_row"] == method]


def join_runs(logged: dict[str, dict[int, float]], group: pd.DataFrame, smooth: int = 1) -> pd.DataFrame:
    """Return rounds x runs, for the rounds in common to all runs that log anything."""
    runs = pd.DataFrame({run_id: logged[run_id] for run_id in group["run_id"] if logged[run_id]}, dtype=float)
    return runs.sort_index().dropna().rolling(smooth, min_periods=1).mean()


def to_numbers(values: pd.Series) -> pd.Series:
    """Return a configuration's values as floats: NaN for texts and truth values."""
    numbers = [one if isinstance(one, int | float) and not isinstance(one, bool) else math.nan for one in values]
    return pd.Series(numbers, values.index, dtype=float)


def sort_by_size(found: pd.Series | pd.Index) -> list[Any]:
    """Return the different values, by size if all are numbers."""
    values = pd.Series(pd.Series(found).unique(), dtype=object)
    numbers = to_numbers(values)
    return sorted(values, key=str) if numbers.isna().any() else list(values[numbers.argsort()])
