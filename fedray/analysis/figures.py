"""Figures from MLflow: `fedray figures SWEEP [--kind ...] [--metric ...] [--x algorithm.rho] [--out DIR]`.

Without --kind: curves, and the sensitivity to every number with three or more values by which alone runs differ.
- curves: metrics by round (or by data sent, `--x megabytes_sent`, or seconds of training, `--x seconds`), a panel per
  setting, a line per method, and below a zoom on the last rounds. `--metric A,B`: separate panels; `A+B`: both in the
  same panels. Of more than six methods also `multiples`, a file per setting: a panel per method, over the others in
  grey.
- sensitivity: a table's metric by a hyper-parameter, the heterogeneity or the participation, a panel per setting.
- bars: a metric with many parts, such as the layers' Λ, at one round; a file per setting.
- methods: a table's metric, a bar for each method, a panel per setting.
- class-accuracy: each class's accuracy by round, a file per setting and method.
- fairness: distribution of the accuracy over the clients, a panel per setting (evaluation.personal).
- confusion: predicted classes for each true class, a file per setting and method.
- partition: samples per client and class, from the configuration alone; also of a file that has not been run.
- differences: each method's paired difference to `--reference`, with its interval, a panel per setting.
- heatmap: a table's metric over two keys, a panel per method, the best framed.
- search: best so far by rounds trained, each trial by key, pairs of keys; of a sweep with `search`.
A line is the mean over the finished seeds, the band (of more than six lines in the zoom alone) and the bars the sample
standard deviation. A colour is a method, its shades and dashes are values; lines differ in dashes or markers, not only
in colour. Panels share their axes, unless that left one half empty, as a caption's line says. Each data set and model
has its own file. Formats: PNG and PDF.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer
from matplotlib.figure import Figure

from fedray.analysis.comparison import compare
from fedray.analysis.data.axes import FINISHED, WITH_CURVE, find_key
from fedray.analysis.data.collect import SweepTable, collect, find_cells
from fedray.analysis.data.metrics import NEVER, read_values
from fedray.analysis.plots import search
from fedray.analysis.plots.bars import draw_bars, draw_forests, draw_methods
from fedray.analysis.plots.clients import draw_classes, draw_confusion, draw_fairness, draw_partitions
from fedray.analysis.plots.curves import (
    BANDED,
    count_lines,
    draw_curves,
    draw_multiples,
    explain_late_start,
    explain_missing_zoom,
)
from fedray.analysis.plots.heatmap import draw_heatmap
from fedray.analysis.plots.sensitivity import draw_sensitivity, list_varied
from fedray.analysis.plots.style import save
from fedray.cells.metric import DEFAULT, Metric
from fedray.common.entry import Overwrite
from fedray.common.errors import UserError, unknown
from fedray.common.output import OutputFile, write_or_print

KINDS = {
    "curves": ("x", "metric", "band", "smooth"),
    "sensitivity": ("x", "metric"),
    "bars": ("metric", "round"),
    "methods": ("metric",),
    "class-accuracy": (),
    "fairness": (),
    "confusion": (),
    "partition": (),
    "search": (),
    "heatmap": ("x", "y", "metric"),
    "differences": ("metric", "reference"),
}
"""Kind -> the options that it uses. Without a kind the options are those of the curves."""
OF_TABLES = ("sensitivity", "methods", "heatmap", "differences")
"""Kinds that show a metric as tables do."""


def main(
    name: Annotated[str, typer.Argument(help="the sweep's name; partition: or its file")],
    kind: Annotated[str, typer.Option(help=" | ".join(KINDS))] = "",
    x: Annotated[
        str,
        typer.Option(
            help="sensitivity, heatmap: a key such as algorithm.rho, or rho alone; sensitivity: also "
            "mofedsam.beta,1-mimelite.beta, options that mean the same; curves: seconds, or a metric such as "
            "megabytes_sent"
        ),
    ] = "",
    metric: Annotated[
        str,
        typer.Option(
            help="curves: logged by round, several with commas (panels each) or + (the same panels); sensitivity, "
            "methods, heatmap: as in tables; bars: the prefix of its parts"
        ),
    ] = "",
    band: Annotated[str, typer.Option(help="curves: seeds | clients")] = "seeds",
    smooth: Annotated[int, typer.Option(min=1, help="curves: average over this many evaluated rounds")] = 1,
    round: Annotated[
        int | None, typer.Option(min=1, help="bars: the round to draw; default the last evaluated")
    ] = None,
    out: Annotated[Path, typer.Option(help="folder for the PNG and PDF files")] = Path("figures"),
    reference: Annotated[
        str, typer.Option(help="differences: the row to compare with; default fedavg if it is a row")
    ] = "",
    y: Annotated[str, typer.Option(help="heatmap: the other key, such as partition.alpha")] = "",
    overwrite: Overwrite = False,
) -> None:
    """Draw a sweep's figures."""
    if kind and kind not in KINDS:
        raise unknown("--kind", kind, KINDS)
    if band not in ("seeds", "clients"):
        raise unknown("--band", band, ("seeds", "clients"))
    given = {"x": x, "metric": metric, "band": band != "seeds", "smooth": smooth > 1, "round": round, "y": y}
    _refuse_unused(kind, [name for name, value in (given | {"reference": reference}).items() if value])
    if kind in ("methods", "heatmap", "differences") and re.search("[+,]", metric):
        raise UserError(f"--metric: found {metric!r}; --kind {kind} takes one metric")
    # A folder is refused before anything is computed.
    OutputFile("--out", out / f"{kind or 'curves'}.pdf", (".pdf",), overwrite)
    if kind == "partition":
        expected = find_cells(name)
        pictures, missing = draw_partitions(expected)
        _save({kind: pictures}, out, expected.name, overwrite=overwrite)
        for message, names in missing.items():
            write_or_print(f"not drawn, {message}: {'; '.join(names)}\n", None)
        return
    sweep, unzoomed = collect(name), ""
    drawn, multiples = dict[str, dict[str, Figure]](), dict[str, dict[str, Figure]]()
    if kind != "curves":  # its x is a metric
        x, y = find_key(x, sweep.cells), find_key(y, sweep.cells)
    if kind in ("", "curves"):
        by = x if kind and x else "round"
        drawn[("curves" if by == "round" else f"by-{by}") + (f"-smooth-{smooth}" if smooth > 1 else "")] = draw_curves(
            sweep, metric or "test_accuracy", band, smooth, by
        )
        unzoomed = explain_missing_zoom(sweep, metric or "test_accuracy", by)
        if by == "round" and count_lines(sweep) > BANDED:
            for one in (metric or "test_accuracy").replace("+", ",").split(","):
                multiples[one if metric else ""] = draw_multiples(sweep, one)
    if kind in ("", "sensitivity"):
        keys = [x] if x else list_varied(sweep, 2 if kind else 3)
        drawn |= {
            f"sensitivity-{key}": draw_sensitivity(sweep, key, (metric if kind else "") or DEFAULT) for key in keys
        }
    if kind == "bars":
        if not metric:
            raise UserError("--metric is required for bars: the prefix of its parts, such as lambda of lambda_fc1")
        drawn["bars"] = draw_bars(sweep, metric, round)
    if kind == "methods":
        drawn["methods"] = draw_methods(sweep, metric or DEFAULT)
    if kind == "heatmap":
        drawn[f"heatmap-{x}-{y}"] = draw_heatmap(sweep, x, y, metric or DEFAULT)
    if kind == "differences":
        drawn[kind] = draw_forests(compare(sweep, reference, metric or DEFAULT))
    if kind == "search" or (not kind and sweep.searched):
        drawn |= {f"search-{what}": figures for what, figures in search.draw_all(sweep).items()}
    if draw := {"class-accuracy": draw_classes, "fairness": draw_fairness, "confusion": draw_confusion}.get(kind):
        drawn[kind] = draw(sweep)
    if not drawn:
        raise UserError("--x: no finished runs of this sweep differ by a number of the configuration alone")
    _save(drawn, out, name, metric, overwrite)
    for one, pictures in multiples.items():
        _save({"multiples": pictures}, out, name, one, overwrite)
    if unzoomed:
        write_or_print(f"no zoom on the last rounds: {unzoomed}\n", None)
    if any(name.startswith("curves") for name in drawn) and (
        late := explain_late_start(sweep, metric or "test_accuracy")
    ):
        write_or_print(f"{late}\n", None)
    for what, names in _list_left_out(sweep, drawn, metric):
        write_or_print(f"not drawn, {what}: {'; '.join(names)}\n", None)


def _refuse_unused(kind: str, given: Collection[str]) -> None:
    """Refuse an option that the chosen kind, or none, does not use."""
    for name in given:
        if name not in KINDS[kind or "curves"]:
            *most, last = [other for other, used in KINDS.items() if name in used]
            users = " or ".join(filter(None, (", ".join(most), last)))
            asked = f"--kind {kind} does" if kind else "figures without --kind do"
            raise UserError(f"--{name}: {asked} not use it; --kind {users} does")


def _save(
    drawn: Mapping[str, Mapping[str, Figure]], out: Path, name: str, metric: str = "", overwrite: bool = False
) -> None:
    """Write the files of every kind and print their paths, and what belongs into the captions."""
    for what, figures in drawn.items():
        stem = "-".join(filter(None, (name, what, metric.replace(",", "-"))))
        for path, figure in save(figures, out, stem, overwrite).items():
            note = f"  for its caption: {figure.get_label()}\n" if figure.get_label() and path.suffix == ".pdf" else ""
            write_or_print(f"{path}\n{note}", None)


def _list_left_out(sweep: SweepTable, drawn: Collection[str], metric: str) -> Iterator[tuple[str, list[str]]]:
    """Yield reason -> labels of the cells that the figures leave out."""
    cells, curves = sweep.cells, any(name.startswith(("curves", "by-")) for name in drawn)
    shown = cells["status"].isin(WITH_CURVE if curves else FINISHED)
    if not curves and Metric.parse(metric).target is not None:
        shown |= read_values(sweep, metric).notna()
    for status, group in cells[~shown].groupby("status"):
        yield str(status), list(group["label"])
    finished = cells[shown]
    if curves:
        for name in filter(None, metric.replace("+", ",").split(",")):
            lacking = finished[[not sweep.get_history(run_id, name) for run_id in finished["run_id"]]]
            if len(lacking):
                yield f"without {name}", list(lacking["label"])
    elif any(name.startswith(OF_TABLES) for name in drawn):
        values = read_values(sweep, metric or DEFAULT)[finished.index]
        if len(lacking := finished[values.isna() | (values == NEVER)]):
            targeted = Metric.parse(metric).target is not None
            yield "never at the target, or without one" if targeted else "undefined", list(lacking["label"])
