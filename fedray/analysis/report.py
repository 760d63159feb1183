"""A sweep as one HTML page: `fedray report SWEEP [--metric ...] [--reference fedavg] [--published] [--out FILE]`.

Result tables, comparisons, learning curves, sensitivity, accuracies of clients, confusion matrices, partitions, hours,
settings, commits, environment, every cell; missing cells come first, by name. Pictures are embedded in the page, whose
content security policy forbids all requests to the network.
"""

import base64
import io
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from matplotlib.figure import Figure

from fedray.analysis.comparison import compare, find_reference, list_notes, tabulate
from fedray.analysis.data.axes import WITH_CURVE, find_symbol, label_cells, label_finished, label_table
from fedray.analysis.data.collect import SweepTable, collect, list_settings
from fedray.analysis.data.metrics import NEVER, count_digits, is_ranked, read_values
from fedray.analysis.plots import search
from fedray.analysis.plots.bars import draw_forests
from fedray.analysis.plots.clients import draw_confusion, draw_fairness
from fedray.analysis.plots.curves import BANDED, count_lines, draw_curves, draw_multiples
from fedray.analysis.plots.sensitivity import draw_sensitivity, list_varied
from fedray.analysis.plots.style import styled
from fedray.analysis.tables.build import build
from fedray.analysis.tables.clients import measure_fairness, read_accuracies
from fedray.analysis.tables.formats import to_html
from fedray.cells.cell import flatten
from fedray.cells.metric import DEFAULT, Metric
from fedray.cells.record import Record
from fedray.cells.status import SUPERSEDED, Ending, Status
from fedray.common.entry import Overwrite, ShowPublished
from fedray.common.errors import FORMS, UserError, format_count
from fedray.common.location import is_server, store_uri
from fedray.common.output import OutputFile, write_or_print
from fedray.common.process import INTERRUPTED
from fedray.components.plugins import list_variants
from fedray.config import COMPONENTS, PLAIN
from fedray.tracking.environment import PREFIX
from fedray.tracking.store import IS_CELL, SECONDS, UNTIMED, find_blocks, find_sweeps, read_record, read_sheet
from fedray.tracking.store import search as search_runs
from fedray.tracking.view import make_address

SHOWN = "finished and shown"
ASKED = {"actors": 1, "cpus_per_actor": 1, "gpus_per_actor": 0}
"""Options of `runtime` that say what a run asks of the cluster, with their defaults."""
COMMIT = "mlflow.source.git.commit"
"""The tag of a run with fedray's commit."""
EARLY = {Status.PRUNED: "pruned by the scheduler", Status.STOPPED: "stopped by `stop` or a callback"}
"""Statuses of runs that ended as intended before their last round, and why."""
TASK = ("data.name", "model.name", "clients.total", "clients.per_round", "training.rounds")
"""Settings at the top of the page, if all cells share them."""
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


def make_page(sweep: SweepTable, metrics: list[str], paper: str = "", to: str = "") -> str:
    """Return the HTML. Raises UserError as in `tables.build.build` and `comparison.compare`."""
    tables = [build(sweep, metric, paper=paper) for metric in metrics]
    cells = _tabulate_cells(sweep, metrics[0])
    counts = Counter(cell["status"] for cell in cells)
    early = [cell for cell in cells if cell["status"] in EARLY]
    absent = [cell for cell in cells if cell["status"] not in (Status.FINISHED, *EARLY)]
    to, rows = find_reference(sweep.cells, to, tables[0].rows), tables[0].rows
    compared = len(rows) > 1 and any(cell["value"] for cell in cells) and is_ranked(metrics[0], sweep.cells)
    compared = compared and not Metric.parse(metrics[0]).reference  # a ratio compares already
    comparison = compare(sweep, to, metrics[0]) if to and compared else None
    grid = tabulate(comparison) if comparison else []
    forests = draw_forests(comparison) if comparison and not comparison.lacks_seeds else {}
    environment: Counter[tuple[str, str]] = Counter()
    for record in sweep.sheet.records.values():
        for tag, value in record.tags.items():
            if tag.startswith(PREFIX) or tag == COMMIT:
                environment["commit of fedray" if tag == COMMIT else tag.removeprefix(PREFIX), value] += 1
    sections = list(_draw_sections(sweep, metrics[0]))
    first = [section.name for section in sections].index("curves") + 1
    same, several = split_settings(sweep.cells)
    templates = Environment(
        loader=PackageLoader("fedray.analysis"),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return templates.get_template("report.html").render(
        name=sweep.name,
        description=sweep.sheet.description,
        counts=f"{format_count(len(cells), 'cell')}: "
        + ", ".join(f"{n} {status}" for status, n in counts.most_common()),
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        contents=[
            *([("missing", "Missing")] if absent else []),
            *([("early", "Ended early")] if early else []),
            ("results", "Results"),
            *((section.name, section.heading) for section in sections[:first]),
            *([("comparison", f"Difference from {comparison.to}")] if comparison else []),
            *((section.name, section.heading) for section in sections[first:]),
            ("hours", "Hours"),
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
        drop_advice=_drop_advice,
        to_html=to_html,
        comparison=comparison,
        compared=grid,
        compared_notes=comparison and list_notes(comparison, grid[0]),
        forests=_show(forests),
        sections=sections,
        first=first,
        fairness=_list_fairness(sweep),
        hours=_describe_hours(measure_hours(sweep)),
        same=same,
        task=", ".join(f"{one['key'].removesuffix('.name')} {one['value']}" for one in same if one["key"] in TASK),
        varied=several,
        made_with=[(name, value, n) for (name, value), n in sorted(environment.items())],
        mixture=sweep.describe_mixture(),
    )


def _draw_sections(sweep: SweepTable, metric: str) -> Iterator[Section]:
    """Yield the drawn sections in the page's order; a section that does not apply to the sweep is empty or missing."""
    finished = bool(sweep.cells["status"].isin(WITH_CURVE).any())
    if sweep.searched:
        trials = search.draw_all(sweep) if Status.FINISHED in {*sweep.cells["status"]} else {}
        drawn = _show({f"{kind}: {what}": one for kind, found in trials.items() for what, one in found.items()})
        yield Section("search", "Search", drawn, "No trial yet.")
    yield Section("curves", "Learning curves", _draw_curves(sweep) if finished else [], "No finished run to draw.")
    varied = list_varied(sweep) if finished and not sweep.searched else []
    by_key = dict[str, Figure]()
    for key in varied:
        with suppress(UserError):  # fewer than two of its values have the metric
            named, found = f"{find_symbol(key, sweep.cells)} ({key})", draw_sensitivity(sweep, key, metric)
            by_key |= {", ".join(filter(None, (named, of))): one for of, one in found.items()}
    if by_key:
        yield Section("sensitivity", "Sensitivity", _show(by_key))
    if finished:
        with suppress(UserError):  # no run has tested its clients
            yield Section("clients", "Clients", _show(draw_fairness(sweep)))
        with suppress(UserError):  # nor its classes
            yield Section("confusion", "Confusion matrices", _show(draw_confusion(sweep)), folded=True)
    empty = "No run yet that holds a picture of its partition."
    yield Section("partitions", "Partitions", _read_pictures(sweep), empty)


def _drop_advice(note: str) -> str:
    """Return a note without what it says about commands, which are for the one who runs the sweep."""
    return "; ".join(part for part in note.split("; ") if "`fedray " not in part).replace("`", "")


def _tabulate_cells(sweep: SweepTable, metric: str) -> list[dict[str, Any]]:
    """Return the table of cells, with the metric of finished ones and, if the store has an address, links."""
    served = is_server(store_uri())
    link = make_address("RUN") if served else ""
    cells, shown = sweep.cells, list[dict[str, Any]]()
    if any(spec.names for spec in cells["spec"]):
        method, setting = label_table(cells)
        cells = cells.assign(label=method + " " + setting + " s" + cells["seed"].astype(str))
    values = read_values(sweep, metric)
    digits = count_digits(values)
    for cell, value in zip(cells.to_dict("records"), values, strict=True):
        record = sweep.sheet.records.get(cell["cell"], Record(Ending(cell["status"])))
        seconds = cell.get("metrics.seconds_per_round")
        shown.append(
            {
                **{key: cell[key] for key in ("cell", "label", "status")},
                "run_id": record.run_id,
                "message": record.ending.message.removeprefix(INTERRUPTED),
                "value": "" if pd.isna(value) else "never" if value == NEVER else f"{value:.{digits}f}",
                "link": link.replace("RUN", record.run_id) if record.run_id else "",
                "seconds": "" if seconds is None or pd.isna(seconds) else f"{seconds:.3g}",
                "theta": record.hashes.get("theta_sha256", "")[:16],
            }
        )
    return shown


def _read_pictures(sweep: SweepTable) -> Pictures:
    """Return data set, partition and number of clients, and the picture of the first run that has one."""
    sections = [name for name in ("data", "partition") if f"{name}.name" in sweep.cells]
    labels = pd.concat([label_cells(sweep.cells, name) for name in sections], axis=1)
    cells = sweep.cells.assign(_setting=labels.agg(" ".join, axis=1))
    keys = ["_setting", *(key for key in ("clients.total", "clients.unseen") if key in cells)]
    pictures: Pictures = []
    for key, group in cells[cells["run_id"].notna()].groupby(keys, sort=False, dropna=False):
        numbers = dict(zip(keys, key, strict=True))
        named = str(key[0]) + (f", {numbers['clients.total']} clients" if "clients.total" in numbers else "")
        named += f", {numbers['clients.unseen']} unseen" if float(str(numbers.get("clients.unseen", 0))) > 0 else ""
        by_seed = group.sort_values("seed", key=pd.to_numeric)
        for run, seed in zip(by_seed["run_id"], by_seed["seed"], strict=True):
            if content := sweep.read_artefact(run, "partition.png"):
                pictures.append((f"{named}, seed {seed}", _make_uri(content)))
                break
    return pictures


def _draw_curves(sweep: SweepTable) -> Pictures:
    """Return the curves; more methods than a panel can tell apart also get a panel each, below."""
    return _show(draw_curves(sweep)) + (_show(draw_multiples(sweep)) if count_lines(sweep) > BANDED else [])


def _list_fairness(sweep: SweepTable) -> list[list[str]]:
    """Return the header and a line per setting and method; nothing if no run has tested its clients."""
    try:
        fairness = measure_fairness(read_accuracies(sweep, label_finished(sweep)))
    except UserError:
        return []
    lines = [[f"{one:.2f}" if isinstance(one, float) else str(one) for one in line] for line in fairness.to_numpy()]
    return [list(map(str, fairness)), *lines]


@styled
def _show(figures: Mapping[str, Figure]) -> Pictures:
    """Return the pictures of figures, each with its name and its label below it."""
    shown = []
    for name, figure in figures.items():
        figure.savefig(out := io.BytesIO(), format="png", dpi=160)
        shown.append(("; ".join(filter(None, (name, str(figure.get_label())))), _make_uri(out.getvalue())))
    return shown


def _make_uri(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()


def split_settings(cells: pd.DataFrame) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
    """Return configuration keys with one value, and those with several; keys that a component lacks do not count."""
    same, several = [], []
    for key in list_settings(cells):
        everywhere, is_plain = cells[key].notna().all(), key.partition(".")[0] in PLAIN  # no cell lacks such a section
        told = cells[key].where(cells[key].notna(), "none") if is_plain else cells[key].dropna()
        values, owners = list(map(str, dict.fromkeys(told))), "" if is_plain else _name_owners(key, cells)
        if len(values) == 1:
            default = find_default(key, cells) if everywhere else None
            changed = default is not None and default != values[0]
            value = values[0] + owners
            usual = default is not None and not changed
            same.append({"key": key, "value": value, "changed": changed, "default": default or "none", "usual": usual})
        elif values:
            several.append((key, ", ".join(values) + owners))
    return same, several


def _name_owners(key: str, cells: pd.DataFrame) -> str:
    """Return in brackets the methods, or other components, that have an option; empty if every cell has it."""
    has, section = cells[key].notna(), key.partition(".")[0]
    if has.all():
        return ""
    names = cells[f"{section}.name" if f"{section}.name" in cells else "algorithm.name"]
    apart = not names[has].isin(names[~has]).any()
    return f" ({', '.join(names[has].astype(str).unique()) if apart else 'where it applies'})"


def find_default(key: str, cells: pd.DataFrame) -> str | None:
    """Return the default of a dotted key, as text; empty if by default it is left out.

    None for keys without one: names, required options, options of several components or of a plug-in.
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
    return str(flatten(kind.model_construct().model_dump(mode="json", warnings=False)).get(option, ""))


def measure_hours(sweep: SweepTable) -> pd.DataFrame:
    """Return a row per run: `what` (SHOWN, or the sweep that made it, with its outcome), `hours` (NaN if it left none),
    `CPU-hours`, `GPU-hours`, and `killed`, the number of its calls that could not write their time.

    The hours of a run are those from its start to its end, in all calls together. Every run under the sweep's name
    counts: those of its tune stage and its smoke version too, and those that are superseded (`--force`), no longer in
    the file, or deleted (until `mlflow gc`). Of runs under another name those count that a stage of the sweep uses.
    """
    assert sweep.store is not None  # noqa: S101 (`collect` sets it)
    (client, experiment), smoke = sweep.store, f"{sweep.name}-smoke"
    known, blocks = find_sweeps(client, experiment), find_blocks(client, experiment, [smoke])[smoke]
    names = [*sweep.parts, *([f"{smoke}/{k}" for k in blocks] or [smoke])]
    tunes = [tune for name in sweep.parts if (tune := f"{name}/tune") in known]
    stages = [sweep.sheet, *(read_sheet(client, tune, known[tune]) for tune in tunes)]
    rounds = {hash: cell.get("training.rounds") for one in stages for hash, cell in one.cells.items()}
    shown = {*sweep.cells.loc[sweep.cells["status"] == Status.FINISHED, "run_id"]}
    rows = []
    records = {record.run_id: (record, "") for one in stages for record in one.records.values() if record.run_id}
    for name in (f"{name}{stage}" for name in names for stage in ("", "/tune")):
        for gone in ("", "deleted"):
            stored = search_runs(client, experiment, f"{IS_CELL} AND tags.`fedray.sweep` = '{name}'", bool(gone))
            records |= {run.info.run_id: (read_record(run), gone) for run in stored}
    for run_id, (record, gone) in records.items():
        tags, status = record.tags, Status.parse(record.tags.get("fedray.status"))
        outcome = gone or (SUPERSEDED if tags.get("fedray.status") == SUPERSEDED else status)
        what = SHOWN if run_id in shown else f"{tags.get('fedray.sweep', 'fedray run')}: {outcome}"
        asked = [tags.get(f"runtime.{key}", n) for key, n in ASKED.items()]
        # Rounds of a killed call that a later one continued from are in the seconds per round, but not in SECONDS.
        per_round = record.totals.get("seconds_per_round_with_evaluation") if status is Status.FINISHED else None
        took = [tags.get(SECONDS), per_round, rounds.get(tags.get("fedray.cell", "")), tags.get(UNTIMED, 0)]
        rows.append([what, *asked, *took])
    columns = ["what", *ASKED, "seconds", "per_round", "rounds", "killed"]
    runs = pd.DataFrame(rows, columns=columns).set_index("what")
    numbers: pd.DataFrame = runs.apply(pd.to_numeric, errors="coerce")  # a stranger's tags can hold any text
    numbers = numbers.where((numbers >= 0) & (numbers < 1e12))
    numbers["hours"] = np.fmax(numbers["seconds"], numbers["per_round"] * numbers["rounds"]) / 3600
    numbers["CPU-hours"] = numbers["hours"] * numbers["actors"] * numbers["cpus_per_actor"]
    numbers["GPU-hours"] = numbers["hours"] * numbers["actors"] * numbers["gpus_per_actor"]
    return numbers.reset_index()[["what", "hours", "CPU-hours", "GPU-hours", "killed"]]


def _describe_hours(runs: pd.DataFrame) -> list[str]:
    """Return a line per outcome, the shown runs first, and one for all of several."""
    lines = []
    parts = sorted(runs.groupby("what"), key=lambda pair: pair[0] != SHOWN)
    for what, group in [*parts, *([("all", runs)] if len(parts) > 1 else [])]:
        sums = group.drop(columns="what").sum()
        said = [f"{float(f'{n:.3g}'):,g} {unit}" for unit, n in sums.items() if unit != "killed"]
        said += [f"{n} of them left no time" for n in [group["hours"].isna().sum()] if n]
        said += [f"{n:g} killed calls are not included" for n in [sums["killed"]] if n]
        lines.append(f"{what}: {format_count(len(group), 'run')}, {', '.join(said)}")
    return lines


def main(
    name: Annotated[str, typer.Argument(help="the sweep's name")],
    metric: Annotated[str, typer.Option(help="metric of the tables; several with commas")] = DEFAULT,
    published: ShowPublished = False,
    reference: Annotated[str, typer.Option(help="the row to compare with; default fedavg if it is a row")] = "",
    out: Annotated[Path | None, typer.Option(help="default: NAME.html here, / as -")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write a sweep's report."""
    file = OutputFile("--out", out or Path(f"{name.replace('/', '-')}.html"), (".html",), overwrite)
    sweep = collect(name)
    page = make_page(sweep, metric.split(","), sweep.name if published else "", reference)
    write_or_print(page, file)
