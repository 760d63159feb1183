"""Result tables from MLflow: `python -m analysis.tables SWEEP [--format markdown|latex|csv] [--metric ...]`.

An entry is the mean ± the sample standard deviation (n - 1) over seeds. The best complete entry of a column is bold,
the second best underlined. An entry of which any seed is missing, failed, diverged, was stopped or is still running
says so and takes no part in the ranking.
"""

import csv
import io
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import pandas as pd
import typer

from analysis.collect import Collected, collect
from fedray.errors import unknown
from fedray.sweepfile import SYMBOLS

DEFAULT = "last10_test_accuracy"
NAMES = {
    "last10_test_accuracy": "test accuracy in %, mean of the last 10 evaluated rounds",
    "test_accuracy": "test accuracy in % of the last round",
    "best_test_accuracy": "test accuracy in % of the best round ON THE TEST SET (an optimistic protocol)",
    "test_loss": "test loss of the last round",
    "last10_test_loss": "test loss, mean of the last 10 evaluated rounds",
    "train_loss": "training loss of the last round",
    "seconds_per_round": "seconds per round",
}
ALWAYS = ("partition.alpha", "partition.shards", "partition.classes")
"""Options that are part of a name also where a sweep has one value only."""
LOWER_IS_BETTER = ("loss", "seconds", "rounds")


@dataclass(frozen=True)
class Entry:
    """One place of a table. mean and std are over the finished seeds; std is None for a single one."""

    mean: float | None
    std: float | None
    seeds: int
    others: Counter[str]
    """How many seeds have which other outcome (missing, failed, diverged, stopped, running, interrupted)."""

    @property
    def whole(self) -> bool:
        return self.mean is not None and not self.others

    def value(self) -> str:
        """`93.12 ± 0.40`, or `-` where no seed has finished."""
        if self.mean is None:
            return "-"
        return f"{self.mean:.2f}" + (f" ± {self.std:.2f}" if self.std is not None else "")

    def note(self) -> str:
        """`(1 diverged, 2 missing)`, or nothing for a complete entry."""
        return f"({', '.join(f'{n} {status}' for status, n in sorted(self.others.items()))})" if self.others else ""


@dataclass(frozen=True)
class ResultTable:
    """Rows x columns of entries, with what has to be said beside them."""

    title: str
    rows: list[str]
    columns: list[str]
    entries: dict[tuple[str, str], Entry]
    ranks: dict[tuple[str, str], int]
    """1 for the best complete entry of a column, 2 for the second best (equal values share a rank)."""
    notes: list[str]


def build(sweep: Collected, metric: str = DEFAULT, rows: str = "algorithm", columns: str = "partition") -> ResultTable:
    """Group a sweep's cells. Raises UserError for a metric no finished run has, or an unknown key."""
    cells = sweep.cells
    column = f"metrics.{metric}"
    if metric in ("test_accuracy", "test_loss", "train_loss"):
        column = f"metrics.final_{metric}"
    done = cells[cells["status"] == "finished"]
    if column not in cells or done[column].isna().any():
        have = [str(name).removeprefix("metrics.") for name in done if str(name).startswith("metrics.")]
        if len(done):
            raise unknown("--metric", metric, have)
    cells = cells.assign(_row=labels(cells, rows), _column=labels(cells, columns))
    entries = {}
    for (row, col), group in cells.groupby(["_row", "_column"], sort=False):
        values = group.loc[group["status"] == "finished", column] if column in group else pd.Series(dtype=float)
        others = Counter(status for status in group["status"] if status != "finished")
        entries[str(row), str(col)] = Entry(
            float(values.mean()) if len(values) else None, float(values.std()) if len(values) > 1 else None,
            len(values), others)
    lower = any(word in metric for word in LOWER_IS_BETTER)
    names = list(dict.fromkeys(cells["_row"])), list(dict.fromkeys(cells["_column"]))
    return ResultTable(f"{sweep.name}: {NAMES.get(metric, metric)}", *names, entries,
                       _ranks(entries, names[1], lower), _notes(cells, metric))


def labels(cells: pd.DataFrame, key: str) -> pd.Series:
    """How each cell is called along an axis: `fedsam ρ=0.05`, `dirichlet α=0.1`; options that do not vary are left out.

    key: a section that has a name (algorithm, partition, model, data), or a dotted key (`clients.per_round`, `seed`).
    """
    columns = [str(name) for name in cells]
    if key in columns:
        return cells[key].astype(str)
    if f"{key}.name" not in columns:
        raise unknown("--rows/--cols", key, {name.removesuffix(".name") for name in columns if name.endswith(".name")}
                      | {name for name in columns if "." in name and not name.startswith("metrics.")} | {"seed"})
    options = [name for name in columns if name.startswith(f"{key}.") and name != f"{key}.name"]
    named = {kind: [name for name in options if group[name].nunique(dropna=False) > 1 or name in ALWAYS]
             for kind, group in cells.groupby(f"{key}.name")}

    def one(cell: pd.Series) -> str:
        kind = cell[f"{key}.name"]
        words = [f"{SYMBOLS.get(name.partition('.')[2], name.partition('.')[2])}={cell[name]}"
                 for name in named[kind] if pd.notna(cell[name])]
        return " ".join([kind, *words])

    return cells.apply(one, axis=1)


def _ranks(entries: dict[tuple[str, str], Entry], columns: Sequence[str], lower: bool) -> dict[tuple[str, str], int]:
    ranks = {}
    for column in columns:
        whole = {key: entry.mean for key, entry in entries.items() if key[1] == column and entry.whole}
        order = sorted({round(mean, 2) for mean in whole.values() if mean is not None}, reverse=not lower)
        for key, mean in whole.items():
            if mean is not None and round(mean, 2) in order[:2] and len(whole) > 1:
                ranks[key] = order.index(round(mean, 2)) + 1
    return ranks


def _notes(cells: pd.DataFrame, metric: str) -> list[str]:
    notes = []
    seeds = cells.groupby(["_row", "_column"])["seed"].nunique()
    if seeds.nunique() == 1:
        notes.append(f"mean ± sample standard deviation over {seeds.iloc[0]} seeds; best bold, second best underlined"
                     if seeds.iloc[0] > 1 else "one seed; best bold, second best underlined")
    else:
        notes.append(f"mean ± sample standard deviation over {seeds.min()} to {seeds.max()} seeds")
    if metric.startswith("last10_") and "metrics.evaluations" in cells:
        few = cells.loc[cells["metrics.evaluations"] < 10, "metrics.evaluations"]
        if len(few):
            notes.append(f"{len(few)} runs have fewer than 10 evaluated rounds (as few as {few.min():.0f}): "
                         "the mean of those")
    bad = cells[~cells["status"].isin(["finished", "missing", "running"])]
    notes += [f"{cell['status']}: {cell['label']}" + (f": {cell['message']}" if cell.get("message") else "")
              for _, cell in bad.iterrows()]
    return notes


def markdown(table: ResultTable) -> str:
    """GitHub's markdown; underlining is HTML's <u>, which markdown lacks."""
    def cell(key: tuple[str, str]) -> str:
        entry = table.entries.get(key)
        if entry is None:
            return ""
        text = entry.value()
        text = {1: f"**{text}**", 2: f"<u>{text}</u>"}.get(table.ranks.get(key, 0), text)
        return f"{text} {entry.note()}".strip()

    grid = [["", *table.columns]] + [[row, *(cell((row, column)) for column in table.columns)] for row in table.rows]
    widths = [max(len(line[k]) for line in grid) for k in range(len(grid[0]))]
    lines = ["| " + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) + " |"
             for line in grid]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join([f"**{table.title}**", "", *lines, "", *(f"- {note}" for note in table.notes)]) + "\n"


def latex(table: ResultTable) -> str:
    """A booktabs table."""
    def cell(key: tuple[str, str]) -> str:
        entry = table.entries.get(key)
        if entry is None:
            return ""
        text = entry.value().replace("±", r"$\pm$").replace("-", "--") if entry.mean is None else \
            entry.value().replace("±", r"$\pm$")
        text = {1: rf"\textbf{{{text}}}", 2: rf"\underline{{{text}}}"}.get(table.ranks.get(key, 0), text)
        return f"{text} {_tex(entry.note())}".strip()

    lines = [r"\begin{table}", r"\centering", rf"\caption{{{_tex(table.title)}}}",
             rf"\begin{{tabular}}{{l{'c' * len(table.columns)}}}", r"\toprule",
             " & ".join(["", *map(_tex, table.columns)]) + r" \\", r"\midrule"]
    lines += [" & ".join([_tex(row), *(cell((row, column)) for column in table.columns)]) + r" \\"
              for row in table.rows]
    lines += [r"\bottomrule", r"\end{tabular}", *(f"% {note}" for note in table.notes), r"\end{table}"]
    return "\n".join(lines) + "\n"


def _tex(text: str) -> str:
    for plain, command in (("\\", r"\textbackslash "), ("_", r"\_"), ("%", r"\%"), ("&", r"\&"), ("#", r"\#"),
                           ("ρ", r"$\rho$"), ("α", r"$\alpha$"), ("β", r"$\beta$"), ("κ", r"$\kappa$"),
                           ("μ", r"$\mu$"), ("λ", r"$\lambda$"), ("τ", r"$\tau$"), ("γ", r"$\gamma$")):
        text = text.replace(plain, command)
    return text


def comma_separated(table: ResultTable) -> str:
    """One line per entry: row, column, mean, std, seeds, and how many seeds have which other outcome."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["row", "column", "mean", "std", "seeds", "others"])
    for (row, column), entry in table.entries.items():
        writer.writerow([row, column, "" if entry.mean is None else f"{entry.mean:.6g}",
                         "" if entry.std is None else f"{entry.std:.6g}", entry.seeds,
                         " ".join(f"{status}={n}" for status, n in sorted(entry.others.items()))])
    return out.getvalue()


FORMATS = {"markdown": markdown, "latex": latex, "csv": comma_separated}


def main(
    name: Annotated[str, typer.Argument(help="the sweep's name")],
    format: Annotated[str, typer.Option(help="markdown | latex | csv")] = "markdown",
    metric: Annotated[str, typer.Option(help="a metric of the runs")] = DEFAULT,
    rows: Annotated[str, typer.Option(help="a section or a dotted key")] = "algorithm",
    cols: Annotated[str, typer.Option(help="a section or a dotted key")] = "partition",
) -> None:
    """Print a sweep's result table."""
    if format not in FORMATS:
        raise unknown("--format", format, FORMATS)
    sys.stdout.write(FORMATS[format](build(collect(name), metric, rows, cols)))


if __name__ == "__main__":
    from fedray.cli import entry

    entry(main)
