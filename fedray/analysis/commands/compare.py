"""`fedray compare SWEEP [SWEEP ...] [--reference fedavg]`: every method's paired difference from a reference."""

from typing import Annotated

import typer

from fedray.analysis.comparison import compare, format_report
from fedray.analysis.data.collect import collect
from fedray.analysis.output import write_or_print
from fedray.cells.metric import DEFAULT
from fedray.common.entry import Json, format_json


def main(
    name: Annotated[
        list[str], typer.Argument(help="the sweep's name, also of one with blocks; of several the rows of all")
    ],
    reference: Annotated[str, typer.Option(help="the row to compare with; default fedavg if it is a row")] = "",
    metric: Annotated[str, typer.Option(help="a metric of the runs, or rounds_to:PERCENT")] = DEFAULT,
    confidence: Annotated[
        float, typer.Option(help="confidence level of the intervals; the tests' level is 1 minus it")
    ] = 0.95,
    rows: Annotated[str, typer.Option(help="sections or dotted keys, with commas")] = "algorithm",
    cols: Annotated[str, typer.Option(help="the same; default partition and all keys that would mix")] = "",
    as_json: Json = False,
) -> None:
    """Print every method's paired difference from a reference."""
    found = compare(collect(*name), reference, metric, confidence, rows, cols)
    if as_json:
        keys = ("row", "column", "n", "mean", "p", "adjusted", "gaps", "unpaired")
        lines = [
            {key: getattr(one, key) for key in keys}
            | {"told_apart_from": one.find_detectable(), "verdict": one.judge(found.lower)}
            for one in found.differences
        ]
        names = {"_row": "row", "_column": "column", "_value": "mean"}
        means = found.means.reset_index().rename(columns=names).to_dict("records")
        print(
            format_json(
                {
                    "sweep": found.sweep,
                    "reference": found.to,
                    "metric": found.metric,
                    "differences": lines,
                    "means": means,
                }
            )
        )
        return
    write_or_print(format_report(found), None)
