"""Is the difference more than the seeds'? `python -m analysis.compare SWEEP --to fedavg [--metric ...]`.

For every method and setting the differences to the reference in the same setting and with the same seed (same data,
same partition, same cohorts), their mean, and Student's t confidence interval of it with n - 1 degrees of freedom.
"""

import math
import sys
from dataclasses import dataclass
from typing import Annotated

import pandas as pd
import typer
from scipy.stats import t

from analysis.axes import labels, separating
from analysis.collect import Collected, collect
from analysis.metrics import DEFAULT, NEVER, lower_is_better, title, values
from fedray.common.errors import UserError, unknown


@dataclass(frozen=True)
class Difference:
    """Method minus reference over n paired seeds; low and high bound the mean, and are None for fewer than two.

    unpaired: seeds of the method or of the reference whose partner has no value.
    """

    row: str
    column: str
    n: int
    mean: float | None
    low: float | None
    high: float | None
    unpaired: int

    def verdict(self, lower: bool) -> str:
        """`better` or `worse` where the interval excludes 0, `not told apart` where it does not."""
        if self.low is None or self.high is None:
            return "too few seeds"
        if self.low <= 0 <= self.high:
            return "not told apart"
        return "better" if (self.high < 0) == lower else "worse"


def paired(
    sweep: Collected,
    to: str,
    metric: str = DEFAULT,
    confidence: float = 0.95,
    rows: str = "algorithm",
    columns: str = "",
) -> list[Difference]:
    """Every method against the reference row `to`, setting by setting.

    Raises UserError for an unknown row, metric or key, a confidence outside (0, 1), or runs that cannot be paired.
    """
    if not 0 < confidence < 1:
        raise UserError(f"--confidence: found {confidence}; a number between 0 and 1 is required")
    cells = sweep.cells.assign(_value=values(sweep, metric), _row=labels(sweep.cells, rows))
    if to not in set(cells["_row"]):
        raise unknown("--to", to, cells["_row"])
    columns = columns or separating(cells, "partition", cells["_row"])
    cells = cells.assign(_column=labels(cells, columns))
    if cells.duplicated(["_row", "_column", "seed"]).any():
        raise UserError(
            f"--cols: with {columns!r} several runs share method, setting and seed; name what they differ by"
        )
    cells = cells.assign(_value=cells["_value"].replace(NEVER, math.nan))
    reference = {
        str(column): group.set_index("seed")["_value"]
        for column, group in cells[cells["_row"] == to].groupby("_column")
    }
    others = cells[cells["_row"] != to]
    return [
        _difference(
            str(row),
            str(column),
            group.set_index("seed")["_value"],
            reference.get(str(column), pd.Series(dtype=float)),
            confidence,
        )
        for (row, column), group in others.groupby(["_row", "_column"], sort=False)
    ]


def _difference(row: str, column: str, ours: pd.Series, theirs: pd.Series, confidence: float) -> Difference:
    both = pd.concat([ours.rename("ours"), theirs.rename("theirs")], axis=1)
    gap = (both["ours"] - both["theirs"]).dropna()
    n = len(gap)
    mean = float(gap.mean()) if n else None
    if n < 2 or mean is None:
        return Difference(row, column, n, mean, None, None, len(both) - n)
    half = float(t.ppf((1 + confidence) / 2, n - 1) * gap.std() / math.sqrt(n))
    return Difference(row, column, n, mean, mean - half, mean + half, len(both) - n)


def report(differences: list[Difference], sweep: str, to: str, metric: str, confidence: float) -> str:
    """Markdown."""
    lines = [
        f"**{sweep}: difference to {to}: {title(metric)}**",
        "",
        f"| method | setting | n | difference | {100 * confidence:g} % interval | |",
        "|---|---|---|---|---|---|",
    ]
    lower = lower_is_better(metric)
    for one in differences:
        interval = "-" if one.low is None or one.high is None else f"{one.low:+.2f} .. {one.high:+.2f}"
        mean = "-" if one.mean is None else f"{one.mean:+.2f}"
        unpaired = f" (unpaired: {one.unpaired})" if one.unpaired else ""
        lines.append(f"| {one.row} | {one.column} | {one.n}{unpaired} | {mean} | {interval} | {one.verdict(lower)} |")
    lines += [
        "",
        f"- paired by seed; Student's t with n - 1 degrees of freedom; each interval on its own, so of many "
        f"rows about {100 * (1 - confidence):g} % are told apart by chance",
    ]
    return "\n".join(lines) + "\n"


def main(
    name: Annotated[str, typer.Argument(help="the sweep's name")],
    to: Annotated[str, typer.Option(help="the reference: a row of the table")],
    metric: Annotated[str, typer.Option(help="a metric of the runs, or rounds_to:PERCENT")] = DEFAULT,
    confidence: Annotated[float, typer.Option(help="of the interval")] = 0.95,
    rows: Annotated[str, typer.Option(help="sections or dotted keys, with commas")] = "algorithm",
    cols: Annotated[str, typer.Option(help="the same; default partition and whatever would mix")] = "",
) -> None:
    """Print every method's paired difference to a reference."""
    sys.stdout.write(report(paired(collect(name), to, metric, confidence, rows, cols), name, to, metric, confidence))


if __name__ == "__main__":
    from fedray.common.entry import entry

    entry(main)
