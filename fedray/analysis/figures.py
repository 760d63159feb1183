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
has its own file, but of differences. Formats: PNG and PDF.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from matplotlib.figure import Figure

from fedray.analysis.comparison import compare
from fedray.analysis.data.axes import FINISHED, WITH_CURVE, find_key, label_finished, list_unlike
from fedray.analysis.data.collect import SweepTable, collect, find_cells
from fedray.analysis.data.metrics import NEVER, read_values
from fedray.analysis.plots import search
from fedray.analysis.plots.bars import draw_bars, draw_forests, draw_methods
from fedray.analysis.plots.clients import draw_classes, draw_confusion, draw_fairness, draw_partitions
from fedray.analysis.plots.curves import (
    BANDED,
    SECONDS,
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

Drawn = tuple[dict[str, Mapping[str, Figure]], list[str]]
"""Name of files -> subject -> figure, and notes for the terminal."""


@dataclass(frozen=True)
class Asked:
    """The options of the command."""

    kind: str
    x: str
    y: str
    metric: str
    band: str
    smooth: int
    round: int | None
    reference: str

    def name(self, *words: str) -> str:
        """Return the name of files, with the metric if one was given."""
        return "-".join(filter(None, (*words, self.metric.replace(",", "-"))))


@dataclass(frozen=True)
class Kind:
    """A kind of figure.

    Attributes:
        draw: draws the figures of a sweep.
        options: names of the options that it uses.
        of_tables: True if it shows one metric, as tables do.
    """

    draw: Callable[[SweepTable, Asked], Drawn]
    options: tuple[str, ...] = ()
    of_tables: bool = False


def _draw_curves(sweep: SweepTable, asked: Asked) -> Drawn:
    metric, by = asked.metric or "test_accuracy", asked.x if asked.kind and asked.x else "round"
    smoothed = f"smooth-{asked.smooth}" if asked.smooth > 1 else ""
    name = asked.name("curves" if by == "round" else f"by-{by}", smoothed)
    drawn: dict[str, Mapping[str, Figure]] = {name: draw_curves(sweep, metric, asked.band, asked.smooth, by)}
    notes = [f"no zoom on the last rounds: {why}"] if (why := explain_missing_zoom(sweep, metric, by)) else []
    if by == "round" and count_lines(sweep) > BANDED:
        for one in metric.replace("+", ",").split(","):
            drawn[f"multiples-{one}" if asked.metric else "multiples"] = draw_multiples(sweep, one)
    late = by == "round" and explain_late_start(sweep, metric)
    return drawn, [*notes, late] if late else notes


def _draw_sensitivity(sweep: SweepTable, asked: Asked) -> Drawn:
    asked = asked if asked.kind else replace(asked, metric="")
    keys = [find_key(asked.x, sweep.cells)] if asked.x else list_varied(sweep, 2 if asked.kind else 3)
    if asked.kind and not keys:
        raise UserError("--x: no finished runs of this sweep differ by a number of the configuration alone")
    metric = asked.metric or DEFAULT
    return {asked.name("sensitivity", key): draw_sensitivity(sweep, key, metric) for key in keys}, []


def _draw_bars(sweep: SweepTable, asked: Asked) -> Drawn:
    if not asked.metric:
        raise UserError("--metric is required for bars: the prefix of its parts, such as lambda of lambda_fc1")
    return {asked.name("bars"): draw_bars(sweep, asked.metric, asked.round)}, []


def _draw_methods(sweep: SweepTable, asked: Asked) -> Drawn:
    return {asked.name("methods"): draw_methods(sweep, asked.metric or DEFAULT)}, []


def _draw_partitions(sweep: SweepTable, asked: Asked) -> Drawn:
    pictures, missing = draw_partitions(sweep)
    return {"partition": pictures}, [f"not drawn, {why}: {'; '.join(names)}" for why, names in missing.items()]


def _draw_searches(sweep: SweepTable, asked: Asked) -> Drawn:
    return {f"search-{what}": figures for what, figures in search.draw_all(sweep).items()}, []


def _draw_heatmaps(sweep: SweepTable, asked: Asked) -> Drawn:
    x, y = find_key(asked.x, sweep.cells), find_key(asked.y, sweep.cells)
    return {asked.name("heatmap", x, y): draw_heatmap(sweep, x, y, asked.metric or DEFAULT)}, []


def _draw_differences(sweep: SweepTable, asked: Asked) -> Drawn:
    compared = compare(sweep, asked.reference, asked.metric or DEFAULT)
    return {asked.name("differences"): draw_forests(compared)}, []


KINDS = {
    "curves": Kind(_draw_curves, ("x", "metric", "band", "smooth")),
    "sensitivity": Kind(_draw_sensitivity, ("x", "metric"), of_tables=True),
    "bars": Kind(_draw_bars, ("metric", "round")),
    "methods": Kind(_draw_methods, ("metric",), of_tables=True),
    "class-accuracy": Kind(lambda sweep, asked: ({asked.kind: draw_classes(sweep)}, [])),
    "fairness": Kind(lambda sweep, asked: ({asked.kind: draw_fairness(sweep)}, [])),
    "confusion": Kind(lambda sweep, asked: ({asked.kind: draw_confusion(sweep)}, [])),
    "partition": Kind(_draw_partitions),
    "search": Kind(_draw_searches),
    "heatmap": Kind(_draw_heatmaps, ("x", "y", "metric"), of_tables=True),
    "differences": Kind(_draw_differences, ("metric", "reference"), of_tables=True),
}
"""Name -> kind of figure. Without a kind the options are those of the curves."""


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
    if kind and KINDS[kind].of_tables and re.search("," if kind == "sensitivity" else "[+,]", metric):
        raise UserError(f"--metric: found {metric!r}; --kind {kind} takes one metric")
    # A folder is refused before anything is computed.
    OutputFile("--out", out / f"{kind or 'curves'}.pdf", (".pdf",), overwrite)
    sweep = find_cells(name) if kind == "partition" else collect(name)
    asked = Asked(kind, x, y, metric, band, smooth, round, reference)
    drawn, notes = dict[str, Mapping[str, Figure]](), list[str]()
    for one in [kind] if kind else ["curves", "sensitivity", *(["search"] if sweep.searched else [])]:
        figures, told = KINDS[one].draw(sweep, asked)
        drawn, notes = drawn | figures, notes + told
    _save(drawn, out, sweep.name, overwrite)
    left_out = () if kind == "partition" else _list_left_out(sweep, kind, metric, x if kind == "curves" else "")
    if kind in ("", "curves") or KINDS[kind].of_tables:
        notes += list_unlike(label_finished(sweep, statuses=WITH_CURVE))
    where = " in curves" * (not kind and bool(sweep.searched))  # trials show them
    for note in [*notes, *(f"not drawn{where}, {what}: {'; '.join(names)}" for what, names in left_out)]:
        write_or_print(f"{note}\n", None)


def _refuse_unused(kind: str, given: Collection[str]) -> None:
    """Refuse an option that the chosen kind, or none, does not use."""
    for name in given:
        if name not in KINDS[kind or "curves"].options:
            *most, last = [other for other, one in KINDS.items() if name in one.options]
            users = " or ".join(filter(None, (", ".join(most), last)))
            asked = f"--kind {kind} does" if kind else "figures without --kind do"
            raise UserError(f"--{name}: {asked} not use it; --kind {users} does")


def _save(drawn: Mapping[str, Mapping[str, Figure]], out: Path, name: str, overwrite: bool) -> None:
    """Write the files of every kind and print their paths, and what belongs into the captions."""
    for what, figures in drawn.items():
        for path, figure in save(figures, out, f"{name}-{what}", overwrite).items():
            note = f"  for its caption: {figure.get_label()}\n" if figure.get_label() and path.suffix == ".pdf" else ""
            write_or_print(f"{path}\n{note}", None)


def _list_left_out(sweep: SweepTable, kind: str, metric: str, across: str) -> Iterator[tuple[str, list[str]]]:
    """Yield reason -> labels of the cells that the figures leave out."""
    cells, curves, metrics = sweep.cells, kind in ("", "curves"), metric.replace("+", ",").split(",")
    of_curves = WITH_CURVE if curves and across != SECONDS else FINISHED
    shown = cells["status"].isin(search.TRIED if kind == "search" else of_curves)
    for name in () if curves else metrics:
        if Metric.parse(name).target is not None:
            shown |= read_values(sweep, name).notna()
    for status, group in cells[~shown].groupby("status"):
        yield str(status), list(group["label"])
    finished = cells[shown]
    if curves:
        for name in filter(None, metrics):
            lacking = finished[[not sweep.get_history(run_id, name) for run_id in finished["run_id"]]]
            if len(lacking):
                yield f"without {name}", list(lacking["label"])
    elif KINDS[kind].of_tables:
        for name in metrics:
            values = read_values(sweep, name or DEFAULT)[finished.index]
            if len(lacking := finished[values.isna() | (values == NEVER)]):
                why = "never at the target, or without one" if Metric.parse(name).target is not None else "undefined"
                yield why + f" ({name})" * (len(metrics) > 1), list(lacking["label"])
