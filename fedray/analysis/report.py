"""A sweep as one HTML page: `fedray report SWEEP [--metric ...] [--reference fedavg] [--published] [--out FILE]`.

Result tables, comparisons, learning curves, sensitivity, accuracies of clients, confusion matrices, partitions, what a
reviewer asks, settings, commits, environment, every cell; missing cells come first, by name. Pictures are embedded in
the page, whose content security policy forbids all requests to the network.
"""

import base64
import io
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from fedray.analysis.comparison import (
    compare,
    find_reference,
    format_lines,
    list_columns,
    list_notes,
)
from fedray.analysis.data.axes import label_finished
from fedray.analysis.data.collect import OF_CELL, Collected
from fedray.analysis.data.metrics import NEVER, is_ranked, read_values
from fedray.analysis.output import make_environment
from fedray.analysis.plots import search
from fedray.analysis.plots.clients import draw_confusion, draw_fairness
from fedray.analysis.plots.comparison import draw_forests
from fedray.analysis.plots.curves import draw_curves, draw_multiples, is_crowded
from fedray.analysis.plots.sensitivity import draw_sensitivity, list_varied
from fedray.analysis.plots.style import styled
from fedray.analysis.reviewer import list_answers, read_splits
from fedray.analysis.tables.build import build
from fedray.analysis.tables.clients import measure_fairness, read_accuracies
from fedray.analysis.tables.formats import to_html
from fedray.cells.spec import flatten
from fedray.common.errors import FORMS, UserError, format_count
from fedray.common.location import store_uri
from fedray.components.plugins import list_variants
from fedray.config import COMPONENTS, PLAIN
from fedray.tracking.store import DESCRIPTION
from fedray.tracking.view import make_address

MADE_WITH = {"mlflow.source.git.commit": "commit of fedray"}
ENVIRONMENT = "environment."
"""Prefix of the tags on the environment of a run."""
EARLY = {"pruned": "pruned by the scheduler", "stopped": "stopped at the target"}
"""Statuses of runs that ended as intended before their last round, and why."""
FAIRNESS = ("setting", "method", "mean", "deviation", "worst tenth", "best tenth", "clients", "seeds")
Pictures = list[tuple[str, str]]
"""Caption and data URI."""


@dataclass(frozen=True)
class Section:
    """A part of the page with pictures. empty: text shown without any. folded: shown on request."""

    name: str
    heading: str
    pictures: Pictures
    empty: str = ""
    folded: bool = False


def make_page(sweep: Collected, metrics: list[str], paper: str = "", to: str = "") -> str:
    """Return the HTML.

    Args:
        sweep: the sweep from MLflow.
        metrics: metrics of the tables; the first one is compared.
        paper: the published table to compare with.
        to: the reference row; default fedavg if it is a row.

    Raises:
        UserError: as in `tables.build.build` and `comparison.compare`.
    """
    tables = [build(sweep, metric, paper=paper) for metric in metrics]
    cells = _tabulate_cells(sweep, metrics[0])
    counts = Counter(cell["status"] for cell in cells)
    early = [cell for cell in cells if cell["status"] in EARLY]
    absent = [cell for cell in cells if cell["status"] not in ("finished", *EARLY)]
    comparisons = _make_comparisons(sweep, tables[0].rows, metrics[0], to)
    sections = list(_draw_sections(sweep, metrics[0]))
    same, several = split_settings(sweep.cells)
    return (
        make_environment()
        .get_template("report.html")
        .render(
            name=sweep.name,
            description=sweep.parent.data.tags.get(DESCRIPTION, ""),
            counts=f"{format_count(len(cells), 'cell')}: "
            + ", ".join(f"{n} {status}" for status, n in counts.most_common()),
            made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            contents=[
                *([("missing", "Missing")] if absent else []),
                *([("early", "Ended early")] if early else []),
                ("results", "Results"),
                *(("comparison", f"Difference from {one['to']}") for one in comparisons),
                *((section.name, section.heading) for section in sections),
                ("reviewer", "What a reviewer asks"),
                ("settings", "Settings"),
                ("environment", "Commits and environment"),
                ("cells", "Cells"),
            ],
            cells=cells,
            metric=metrics[0],
            absent=absent,
            early=early,
            early_why=", ".join(f"{counts[status]} {why}" for status, why in EARLY.items() if counts[status]),
            tables=tables,
            to_html=to_html,
            comparisons=comparisons,
            sections=sections,
            fairness_header=FAIRNESS,
            fairness=_list_fairness(sweep),
            answers=list_answers(sweep),
            same=same,
            varied=several,
            made_with=_describe_environment(sweep),
            mixture=sweep.describe_mixture(),
        )
    )


def _draw_sections(sweep: Collected, metric: str) -> Iterator[Section]:
    """Yield the drawn sections in the page's order; a section that does not apply to the sweep is empty or missing."""
    finished = bool((sweep.cells["status"] == "finished").any())
    if sweep.search.keys:
        trials = search.draw_all(sweep) if finished else {}
        drawn = [(f"{kind}: {what}", _encode(one)) for kind, found in trials.items() for what, one in found.items()]
        yield Section("search", "Search", drawn, "No trial yet.")
    yield Section("curves", "Learning curves", _draw_curves(sweep) if finished else [], "No finished run to draw.")
    if finished and not sweep.search.keys and (drawn := _draw_sensitivity(sweep, metric)):
        yield Section("sensitivity", "Sensitivity", drawn)
    if finished and (drawn := _draw_if_any(draw_fairness, sweep)):
        yield Section("clients", "Clients", drawn)
    if finished and (drawn := _draw_if_any(draw_confusion, sweep)):
        yield Section("confusion", "Confusion matrices", drawn, folded=True)
    empty = "No run yet that holds a picture of its partition."
    drawn = [(split, _make_uri(content)) for split, _, content in read_splits(sweep, "partition.png") if content]
    yield Section("partitions", "Partitions", drawn, empty)


def _tabulate_cells(sweep: Collected, metric: str) -> list[dict[str, Any]]:
    """Return the table of cells, with the metric of finished ones and, if the store has an address, links."""
    served = store_uri().startswith(("http://", "https://"))
    link = make_address("RUN") if served else ""
    shown = []
    for cell, value in zip(sweep.cells.to_dict("records"), read_values(sweep, metric), strict=True):
        run = sweep.runs.get(cell["run_id"])
        seconds, message = cell.get("metrics.seconds_per_round"), cell.get("message")
        shown.append(
            {
                **{key: cell[key] for key in ("cell", "label", "status")},
                "run_id": "" if run is None else run.info.run_id,
                "message": message if isinstance(message, str) else "",
                "value": "" if pd.isna(value) else "never" if value == NEVER else f"{value:.2f}",
                "link": link.replace("RUN", run.info.run_id) if run is not None else "",
                "seconds": "" if seconds is None or pd.isna(seconds) else f"{seconds:.3g}",
                "theta": run.data.tags.get("fedray.theta_sha256", "")[:16] if run is not None else "",
            }
        )
    return shown


def _describe_environment(sweep: Collected) -> list[tuple[str, str, int]]:
    found: Counter[tuple[str, str]] = Counter()
    for run in sweep.runs.values():
        tags = run.data.tags
        found.update((name, tags[tag]) for tag, name in MADE_WITH.items() if tag in tags)
        found.update((tag.removeprefix(ENVIRONMENT), tags[tag]) for tag in tags if tag.startswith(ENVIRONMENT))
    return [(name, value, n) for (name, value), n in sorted(found.items())]


def _make_comparisons(sweep: Collected, rows: list[str], metric: str, to: str) -> list[dict[str, Any]]:
    """Return the page's comparisons with one row; none without a reference, another row, or a best value."""
    to = find_reference(sweep.cells, to, rows)
    compared = len(rows) > 1 and (sweep.cells["status"] == "finished").any() and is_ranked(metric, sweep.cells)
    if not to or not compared:
        return []
    found = compare(sweep, to, metric)
    return [
        {
            "to": found.to,
            "title": found.title,
            "header": list_columns(found.confidence),
            "lines": format_lines(found),
            "notes": list_notes(found),
            "pictures": [
                (f"Difference from {found.to}: {setting}", _encode(figure))
                for setting, figure in draw_forests(found).items()
            ],
        }
    ]


def _draw_curves(sweep: Collected) -> Pictures:
    """Return the curves; those of more methods than a panel can tell apart get a panel each."""
    many = is_crowded(sweep)
    drawn = draw_multiples(sweep) if many else draw_curves(sweep)
    note = "each method over the others in grey, mean over seeds" if many else ""
    return [(": ".join(filter(None, (setting, note))), _encode(figure)) for setting, figure in drawn.items()]


def _draw_sensitivity(sweep: Collected, metric: str) -> Pictures:
    drawn = {key: draw_sensitivity(sweep, key, metric) for key in list_varied(sweep)}
    return [
        (f"{key}{f', {of}' if of else ''}", _encode(figure))
        for key, found in drawn.items()
        for of, figure in found.items()
    ]


def _draw_if_any(draw: Callable[[Collected], dict[str, Figure]], sweep: Collected) -> Pictures:
    """Return the figures, or none if no run has the data for them."""
    try:
        return [(what, _encode(figure)) for what, figure in draw(sweep).items()]
    except UserError:
        return []


def _list_fairness(sweep: Collected) -> list[list[str]]:
    """Return a line per setting and method; none if no run has tested its clients."""
    try:
        found = measure_fairness(read_accuracies(sweep, label_finished(sweep))).to_dict("records")
    except UserError:
        return []
    told = ("mean", "deviation", "worst tenth", "best tenth")
    return [
        [
            str(one["setting"]),
            str(one["method"]),
            *(f"{one[key]:.2f}" for key in told),
            str(one["clients"]),
            str(one["seeds"]),
        ]
        for one in found
    ]


@styled
def _encode(figure: Figure) -> str:
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=160)
    return _make_uri(out.getvalue())


def _make_uri(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()


def split_settings(cells: pd.DataFrame) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
    """Return configuration keys with one value, and those with several; keys that a component lacks do not count."""
    same, several = [], []
    for key in map(str, cells):
        if key in OF_CELL or key.startswith("metrics."):
            continue
        found = [str(value) for value in dict.fromkeys(cells[key].dropna())]
        everywhere = cells[key].notna().all()
        if len(found) == 1 and everywhere:
            default = find_default(key, cells)
            changed = default is not None and default != found[0]
            same.append({"key": key, "value": found[0], "changed": changed, "default": default or "none"})
        else:
            several.append((key, ", ".join(found) + ("" if everywhere else " (where it applies)")))
    return same, several


def find_default(key: str, cells: pd.DataFrame) -> str | None:
    """Return the default of a dotted key, as text; empty if by default it is left out.

    Args:
        key: a key of the configuration, with one value in all cells.
        cells: a row per cell, as in `SweepTable`.

    Returns:
        None for keys without a default: names, required options, options of several components or of a plug-in.
    """
    section, _, option = key.partition(".")
    kind = PLAIN.get(section)
    if section in COMPONENTS and f"{section}.name" in cells:
        names = cells[f"{section}.name"].dropna().unique()
        known = COMPONENTS[section][0] if not str(names[0]).endswith(FORMS) else list_variants()
        kind = known.get(names[0]) if len(names) == 1 else None
    field = None if kind is None else kind.model_fields.get(option.partition(".")[0])
    if kind is None or field is None or field.is_required():
        return None
    return flatten(kind.model_construct().model_dump(mode="json", warnings=False)).get(option, "")
