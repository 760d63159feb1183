"""Plots of clients' accuracies and of the model's confusion of classes."""

from collections import Counter
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from fedray.analysis.data.axes import label_cells, label_finished
from fedray.analysis.data.collect import SweepTable, refuse_plugins
from fedray.analysis.data.metrics import list_parts
from fedray.analysis.plots.style import (
    WIDTH,
    Figures,
    describe_seeds,
    iter_methods,
    join_runs,
    make_axes,
    make_rows,
    split_figures,
    styled,
    with_legend,
    wrap_title,
)
from fedray.analysis.tables.clients import is_unseen, measure_fairness, read_accuracies, read_confusions
from fedray.common.errors import UserError
from fedray.datasets import make_data_source
from fedray.datasets.base import load_data
from fedray.partitions import make_partition
from fedray.partitions.held_out import split_samples
from fedray.partitions.heterogeneity import draw_heatmap

ANNOTATED = 12
"""Largest number of classes for which a confusion matrix shows numbers."""
SPREAD = 0.27
"""Vertical scatter of the clients of a row, in rows."""
GOLDEN = 0.618
"""Multiples of it fill an interval evenly, for any number of them."""


@styled
def draw_fairness(sweep: SweepTable) -> Figures:
    """Draw each client's accuracy, their mean and deviation, and the means of the worst and the best tenth."""
    cells = label_finished(sweep)
    clients = read_accuracies(sweep, cells)
    spread = {(one["setting"], one["method"]): one for one in measure_fairness(clients).to_dict("records")}
    figures = {}
    for name, settings in split_figures(cells):
        names = [setting for setting, _ in settings]
        methods = [method for method, _ in iter_methods(cells, cells) if any((one, method) in spread for one in names)]
        if not methods:
            continue
        drawn = make_rows(names, "personal accuracy in %", methods)
        for setting, area in drawn.main.items():
            for place, method in enumerate(methods):
                if (setting, method) in spread:
                    of_both = clients[(clients["setting"] == setting) & (clients["method"] == method)]
                    new = is_unseen(of_both)
                    known, unseen = (of_both.loc[which, "accuracy"].to_numpy() for which in (~new, new))
                    _draw_row(area, place, known, spread[setting, method])
                    if len(unseen):
                        said = "an unseen client, with the model it receives"
                        area.plot(
                            unseen, _scatter(place, len(unseen)), "x", color="#009e73", markersize=2.5, label=said
                        )
        first = next(iter(drawn.main.values()))
        first.set_xlim(max(first.get_xlim()[0], -2), 102)  # a deviation may reach beyond 100 %
        note = describe_seeds((one["seeds"] for one in spread.values()), "")
        drawn.figure.set_label(note if note == "one seed" else f"{note}; a dot for each client and seed")
        figures[name] = with_legend(drawn.figure, *drawn.main.values())
    return figures


def _scatter(place: int, count: int) -> np.ndarray:
    """Return heights around a row, so that dots do not cover each other."""
    heights: np.ndarray = place + SPREAD * (2 * (np.arange(count) * GOLDEN % 1) - 1)
    return heights


def _draw_row(area: Axes, place: int, dots: np.ndarray, one: Mapping[Hashable, Any]) -> None:
    """Draw a method's clients, and their mean, deviation and tenths."""
    area.plot(
        dots, _scatter(place, len(dots)), ".", color="0.7", markersize=1.5, rasterized=len(dots) > 500, label="a client"
    )
    said = "mean ± standard deviation over clients"
    bar = {"xerr": one["deviation"], "fmt": "o", "color": "#000000", "capsize": 2, "elinewidth": 0.8}
    area.errorbar(one["mean"], place, label=said, **bar)
    area.plot(one["worst tenth"], place, "<", color="#d55e00", label="mean of the worst tenth")
    area.plot(one["best tenth"], place, ">", color="#0072b2", label="mean of the best tenth")


@styled
def draw_confusion(sweep: SweepTable) -> dict[str, Figure]:
    """Return method and setting -> figure of the classes that the final global model predicts, mean over seeds.

    In percent of the class's test samples; a class is the mean over the seeds that test it, as in `draw_classes`.
    """
    figures = {}
    for (setting, method), runs in read_confusions(sweep, label_finished(sweep)).items():
        with np.errstate(invalid="ignore"):  # no seed tests the class
            percent = np.nansum(runs, axis=0) / (~np.isnan(runs)).sum(axis=0)
        height = min(0.75 + 0.01 * max(len(percent) - 10, 0), 1.2)
        figure, area = make_axes("predicted class", "class", f"{method}, {setting}", height)
        image = area.imshow(percent, cmap="Blues", vmin=0, vmax=100, aspect="auto")
        if len(percent) <= ANNOTATED:
            area.set_xticks(range(percent.shape[1]))
            area.set_yticks(range(len(percent)))
            for (row, column), value in np.ndenumerate(percent):
                if value >= 0.5:
                    colour = "white" if value > 60 else "black"
                    area.text(column, row, f"{value:.0f}", ha="center", va="center", color=colour, fontsize=5)
        area.grid(visible=False)
        figure.colorbar(image, label="% of the class")
        figure.set_label(describe_seeds([len(runs)], ""))
        figures[f"{method} {setting}"] = figure
    return figures


@styled
def draw_classes(sweep: SweepTable) -> dict[str, Figure]:
    """Return setting and method -> figure: the accuracy of each class (down) by round (across), mean over seeds."""
    try:
        cells, parts = label_finished(sweep), list_parts(sweep, "accuracy_class")
    except UserError:
        raise UserError("--kind: class-accuracy needs runs with the probe: evaluation.probes: [classes]") from None
    figures = {}
    for (setting, method), group in cells.groupby(["_column", "_row"], sort=False):
        rows = [
            join_runs(
                {run_id: sweep.get_history(run_id, f"accuracy_class_{part}") for run_id in group["run_id"]}, group
            ).mean(axis=1)
            for part in parts
        ]
        grid = pd.DataFrame(dict(zip(parts, rows, strict=True))).dropna(how="all")
        if not len(grid):
            continue
        figure, area = make_axes("round", "class", f"{method}, {setting}", 0.4 + 0.04 * min(len(parts), 20))
        edges = np.concatenate([[grid.index[0] - 0.5], (grid.index[1:] + grid.index[:-1]) / 2, [grid.index[-1] + 0.5]])
        figure.set_label(describe_seeds([group["seed"].nunique()], ""))
        image = area.pcolormesh(
            edges, np.arange(len(parts) + 1) - 0.5, grid.to_numpy().T, cmap="Greys_r", vmin=0, vmax=100, rasterized=True
        )
        area.grid(visible=False)
        area.invert_yaxis()
        area.yaxis.set_major_locator(MaxNLocator(integer=True))
        figure.colorbar(image, label="test accuracy in %")
        figures[f"{method} {setting}"] = figure
    return figures


@styled
def draw_partitions(sweep: SweepTable) -> tuple[dict[str, Figure], dict[str, list[str]]]:
    """Draw the samples per client and class, for the first seed. No run is needed.

    Pictures of the same data share a scale. Return data, partition and number of clients -> figure; and the message of
    data that cannot be read -> what it leaves out.
    """
    clients_of = [(spec.get("clients.total"), spec.get("clients.unseen")) for spec in sweep.cells["spec"]]
    clients = [f" {total} clients" + (f" and {unseen} unseen" if unseen else "") for total, unseen in clients_of]
    names = label_cells(sweep.cells, "data,partition") + (clients if len(set(clients)) > 1 else "")
    cells = sweep.cells.assign(_name=names).drop_duplicates("_name")
    figures, left_out = dict[str, Figure](), dict[str, list[str]]()
    of_data = dict[str, list[AxesImage]]()
    most = Counter[str]()
    for spec, name in zip(cells["spec"], cells["_name"], strict=True):
        if not spec.packed:
            refuse_plugins("--kind partition", {name: spec.get(name) for name in ("data", "partition")})
        source, partition = make_data_source(spec.get("data")), make_partition(spec.get("partition"))
        try:
            data = load_data(source)
            if spec.find_changed(data.digest, partition.list_identity_entries()):
                raise UserError("other data, or another file of its partition, than its cells were planned with")
            data = data if source.test is None else data.merge()
        except UserError as error:
            left_out.setdefault(str(error), []).append(name)
            continue
        total, unseen = spec.get("clients.total"), spec.get("clients.unseen") or 0
        shards = split_samples(source, partition, data, total, spec.get("seed"), unseen).dealt
        counts = shards.count_labels(data.y_train, data.num_classes)
        figures[name] = figure = draw_heatmap(counts, title=wrap_title(name, 0.8 * WIDTH), unseen=unseen)
        figure.set_size_inches(WIDTH, WIDTH * (0.45 + 0.02 * min(data.num_classes, 20)))
        figure.axes[0].grid(visible=False)
        figure.set_label(f"the split of seed {spec.get('seed')}" * (spec.get("partition.seed") is None))
        of_data.setdefault(key := str(spec.get("data")), []).append(figure.axes[0].images[0])
        most[key] = max(most[key], int(counts.max()))
    for key, images in of_data.items():
        for image in images:
            image.set_clim(0, most[key])
    if not figures:
        raise UserError("; ".join(left_out))
    return figures, left_out
