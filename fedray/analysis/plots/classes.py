"""Heatmaps of classes: the accuracy of each by round, and each client's samples of it."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedray.analysis.data.axes import label_cells, label_finished
from fedray.analysis.data.collect import Collected, SweepTable
from fedray.analysis.data.metrics import list_parts
from fedray.analysis.data.specs import iter_specs, refuse_plugins
from fedray.analysis.plots.panels import join_runs
from fedray.analysis.plots.style import WIDTH, make_axes, styled, wrap_title
from fedray.cells.spec import CellSpec
from fedray.common.errors import UserError
from fedray.datasets import make_data_source
from fedray.datasets.base import load_data
from fedray.partitions import make_partition
from fedray.partitions.held_out import split_samples
from fedray.partitions.heterogeneity import draw_heatmap
from fedray.sweep.plan.cells import Cell


@styled
def draw_classes(sweep: Collected) -> dict[str, Figure]:
    """Draw the accuracy of each class (down) by round (across), mean over seeds.

    Returns:
        Setting and method -> figure.

    Raises:
        UserError: no run has logged `accuracy_class_C` (evaluation.probes: [classes]).
    """
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

    Returns:
        Data, partition and number of clients -> figure; and the message of data that cannot be read -> what it leaves
        out.

    Raises:
        UserError: no data can be read, or a store names classes of your own for data or partition.
    """
    cells = sweep.cells.assign(
        _setting=label_cells(sweep.cells, "data,partition"),
        _clients=[_describe_clients(spec) for spec in iter_specs(sweep.cells)],
    ).drop_duplicates(["_setting", "_clients"])
    figures, left_out = dict[str, Figure](), dict[str, list[str]]()
    for spec, setting, clients in zip(iter_specs(cells), cells["_setting"], cells["_clients"], strict=True):
        if not isinstance(spec, Cell):
            refuse_plugins("--kind partition", {name: spec.get(name) for name in ("data", "partition")})
        name = f"{setting} {clients}" if cells["_clients"].nunique() > 1 else setting
        source, partition = make_data_source(spec.get("data")), make_partition(spec.get("partition"))
        try:
            data = load_data(source) if source.test is None else load_data(source).merge()
        except UserError as error:
            left_out.setdefault(str(error), []).append(name)
            continue
        total, unseen = spec.get("clients.total"), spec.get("clients.unseen") or 0
        shards = split_samples(source, partition, data, total, spec.get("seed"), unseen).dealt
        counts = shards.count_labels(data.y_train, data.num_classes)
        figures[name] = figure = draw_heatmap(counts, title=wrap_title(name, 0.8 * WIDTH), unseen=unseen)
        figure.set_size_inches(WIDTH, WIDTH * (0.45 + 0.02 * min(data.num_classes, 20)))
        figure.axes[0].grid(visible=False)
    if not figures:
        raise UserError("; ".join(left_out))
    return figures, left_out


def _describe_clients(spec: CellSpec) -> str:
    """Return the number of clients, as text."""
    unseen = spec.get("clients.unseen")
    return f"{spec.get('clients.total')} clients" + (f" and {unseen} unseen" if unseen else "")
