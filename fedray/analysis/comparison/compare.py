"""All comparisons of a sweep's methods with one of them."""

from dataclasses import dataclass

from fedray.analysis.comparison.aggregates import Aggregate, aggregate_runs
from fedray.analysis.comparison.differences import (
    Difference,
    Improvement,
    count_improvements,
    pair_by_seed,
    tabulate_by_seed,
)
from fedray.analysis.data.axes import find_label
from fedray.analysis.data.collect import SweepTable
from fedray.analysis.data.metrics import describe_undeclared, is_smaller_better, make_title
from fedray.analysis.statistics.ranks import Ranks, rank_methods
from fedray.cells.metric import DEFAULT


@dataclass(frozen=True)
class Comparison:
    """All methods of a sweep against one, in each setting and over all settings.

    title: the metric in words. lower: True if its smallest value is the best. notes: on the metric and the cells.
    ranks: None for one setting.
    """

    sweep: str
    to: str
    metric: str
    title: str
    lower: bool
    notes: list[str]
    confidence: float
    differences: list[Difference]
    improvements: list[Improvement]
    aggregates: list[Aggregate]
    ranks: Ranks | None


def compare(
    sweep: SweepTable,
    to: str,
    metric: str = DEFAULT,
    confidence: float = 0.95,
    rows: str = "algorithm",
    columns: str = "",
) -> Comparison:
    """Compare every method with the reference row `to`.

    Raises:
        UserError: a row, metric or key is unknown, the confidence is outside (0, 1), or runs cannot be paired.
    """
    to = find_label(sweep.cells, to, rows)
    cells = tabulate_by_seed(sweep, metric, rows, columns)
    differences, lower = pair_by_seed(cells, to, confidence), is_smaller_better(metric, sweep.cells)
    means = cells.groupby(["_column", "_row"])["_value"].agg(lambda of_seeds: of_seeds.mean(skipna=False)).unstack()
    return Comparison(
        sweep.name,
        to,
        metric,
        make_title(metric, sweep.cells),
        lower,
        [*describe_undeclared(metric, sweep.cells), *([sweep.note] if sweep.note else [])],
        confidence,
        differences,
        count_improvements(differences, lower),
        aggregate_runs(cells, to, lower, confidence),
        rank_methods(means, lower, 1 - confidence),
    )
