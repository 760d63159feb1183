"""A sweep as one HTML page: `fedray report SWEEP [--metric ...] [--to fedavg] [--published] [--out FILE]`.

Result tables, comparisons, learning curves, partition heatmaps, settings, commits, environment, every cell; what is
missing comes first, by name. Pictures are in the page itself, which asks the network for nothing: its content security
policy forbids it to.
"""

import base64
import io
import sys
import tempfile
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup
from matplotlib.figure import Figure
from mlflow.exceptions import MlflowException

from analysis.axes import labels
from analysis.collect import Collected, collect
from analysis.compare import Comparison, across, compared, header, lines, notes
from analysis.drawing import search
from analysis.drawing.comparison import forests, rank_diagram
from analysis.figures import curves
from analysis.metrics import DEFAULT
from analysis.style import styled
from analysis.tables import build
from analysis.tabling.formats import in_html
from analysis.tabling.result_table import ResultTable
from fedray.sweep.grid import COMPONENTS

MADE_WITH = {"mlflow.source.git.commit": "commit of fedray"}
ENVIRONMENT = "environment."
"""Prefix of the tags that say what a run was made with."""
Pictures = list[tuple[str, str]]
"""Caption and data URI."""


def page(sweep: Collected, metrics: list[str], paper: str = "", to: str = "") -> str:
    """The HTML.

    Args:
        sweep: what MLflow knows of it.
        metrics: of the tables; the first one is compared.
        paper: the published table to put beside.
        to: the row that the others are compared to; default fedavg, where it is a row.

    Raises:
        UserError: as `tables.build` and `compare.compared` do.
    """
    templates = Environment(
        loader=PackageLoader("analysis"),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    tables = [build(sweep, metric, paper=paper) for metric in metrics]
    cells = [_cell(sweep, cell) for cell in sweep.cells.to_dict("records")]
    counts = Counter(cell["status"] for cell in cells)
    same, varied = _settings(sweep.cells)
    return templates.get_template("report.html").render(
        name=sweep.name,
        description=sweep.parent.data.tags.get("mlflow.note.content", ""),
        counts=f"{len(cells)} cells: " + ", ".join(f"{n} {status}" for status, n in counts.most_common()),
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        cells=cells,
        absent=[cell for cell in cells if cell["status"] != "finished"],
        tables=tables,
        filled=_filled,
        comparisons=_comparisons(sweep, tables[0].rows, metrics[0], to),
        pictures=[
            *([("Search", _search(sweep), "No trial yet.")] if sweep.search.keys else []),
            ("Learning curves", _curves(sweep), "No finished run to draw."),
            ("Partitions", _partitions(sweep), "No run yet that holds a picture of its partition."),
        ],
        same=same,
        varied=varied,
        made_with=_made_with(sweep),
    )


def _filled(table: ResultTable, row: str, column: str) -> Markup:
    return Markup(in_html(table, (row, column)))  # noqa: S704 (in_html escapes what it did not write)


def _cell(sweep: Collected, cell: dict[Any, Any]) -> dict[str, Any]:
    run = sweep.runs.get(cell["run_id"])
    seconds = cell.get("metrics.seconds_per_round")
    message = cell.get("message")
    return {
        **{key: cell[key] for key in ("cell", "label", "status", "run_id")},
        "message": message if isinstance(message, str) else "",
        "seconds": "" if seconds is None or pd.isna(seconds) else f"{seconds:.3g}",
        "theta": run.data.tags.get("fedray.theta_sha256", "")[:16] if run is not None else "",
    }


def _settings(cells: pd.DataFrame) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Configuration keys with one value, and those with several; what a cell's component does not have is no value."""
    same, varied = [], []
    for key in map(str, cells):
        if key in ("cell", "label", "status", "run_id", "message") or key.startswith("metrics."):
            continue
        found = [str(value) for value in dict.fromkeys(cells[key].dropna())]
        everywhere = cells[key].notna().all()
        if len(found) == 1 and everywhere:
            same.append((key, found[0]))
        else:
            varied.append((key, ", ".join(found) + ("" if everywhere else " (where it applies)")))
    return same, varied


def _made_with(sweep: Collected) -> list[tuple[str, str, int]]:
    found: Counter[tuple[str, str]] = Counter()
    for run in sweep.runs.values():
        tags = run.data.tags
        found.update((name, tags[tag]) for tag, name in MADE_WITH.items() if tag in tags)
        found.update((tag.removeprefix(ENVIRONMENT), tags[tag]) for tag in tags if tag.startswith(ENVIRONMENT))
    return [(name, value, n) for (name, value), n in sorted(found.items())]


def _comparisons(sweep: Collected, rows: list[str], metric: str, to: str) -> list[dict[str, Any]]:
    """What the page says of the comparison to one row; nothing without a reference, or with it alone."""
    to = to or ("fedavg" if "fedavg" in rows else "")
    if not to or len(rows) < 2 or not (sweep.cells["status"] == "finished").any():
        return []
    found = compared(sweep, to, metric)
    return [
        {
            "to": found.to,
            "title": found.title,
            "header": header(found.confidence),
            "lines": lines(found),
            "notes": [*across(found), *notes(found)],
            "pictures": _drawn(found),
        }
    ]


def _drawn(found: Comparison) -> Pictures:
    pictures = [(f"Difference to {found.to}: {setting}", _uri(figure)) for setting, figure in forests(found).items()]
    if found.ranks is not None:
        pictures.append(("Mean ranks over all settings", _uri(rank_diagram(found.ranks))))
    return pictures


def _search(sweep: Collected) -> Pictures:
    if not (sweep.cells["status"] == "finished").any():
        return []
    drawn = search.drawn(sweep)
    return [(f"{kind}: {what}", _uri(figure)) for kind, figures in drawn.items() for what, figure in figures.items()]


def _curves(sweep: Collected) -> Pictures:
    if not (sweep.cells["status"] == "finished").any():
        return []
    return [(setting, _uri(figure)) for setting, figure in curves(sweep).items()]


def _partitions(sweep: Collected) -> Pictures:
    """One picture for each data set, partition and number of clients: of the first seed that has one."""
    sections = [name for name in ("data", "partition") if name in COMPONENTS and f"{name}.name" in sweep.cells]
    cells = sweep.cells.assign(_setting=labels(sweep.cells, ",".join(sections)))
    keys = ["_setting", *(["clients.total"] if "clients.total" in cells else [])]
    pictures = []
    for key, group in cells[cells["run_id"].notna()].groupby(keys, sort=False):
        caption = str(key[0]) + (f", {key[1]} clients" if len(keys) > 1 else "")
        found = next(filter(None, (_artifact(sweep, run_id) for run_id in group.sort_values("seed")["run_id"])), None)
        if found:
            pictures.append((caption, _data(found)))
    return pictures


def _artifact(sweep: Collected, run_id: str) -> bytes | None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            return Path(sweep.client.download_artifacts(run_id, "partition.png", folder)).read_bytes()
        except (MlflowException, OSError):  # the run has none
            return None


@styled
def _uri(figure: Figure) -> str:
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=160)
    return _data(out.getvalue())


def _data(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()


def main(
    name: Annotated[str, typer.Argument(help="the sweep's name")],
    metric: Annotated[str, typer.Option(help="of the tables, several with commas")] = DEFAULT,
    published: Annotated[bool, typer.Option("--published", help="the paper's values beside ours")] = False,
    to: Annotated[str, typer.Option(help="the row to compare the others to; default fedavg, where it is a row")] = "",
    out: Annotated[Path | None, typer.Option(help="default: NAME.html here, / as -")] = None,
) -> None:
    """Write a sweep's page."""
    path = out or Path(f"{name.replace('/', '-')}.html")
    text = page(collect(name), metric.split(","), name if published else "", to)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    from fedray.common.entry import entry

    entry(main)
