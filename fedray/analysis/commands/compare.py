"""`fedray compare SWEEP --reference fedavg`: paired differences from a reference, and a ranking over all settings."""

import sys
from typing import Annotated

import typer

from fedray.analysis.comparison.compare import compare
from fedray.analysis.comparison.text import format_report
from fedray.analysis.data.collect import collect
from fedray.cells.metric import DEFAULT


def main(
    name: Annotated[str, typer.Argument(help="the sweep's name")],
    reference: Annotated[str, typer.Option(help="a row of the table")],
    metric: Annotated[str, typer.Option(help="a metric of the runs, or rounds_to:PERCENT")] = DEFAULT,
    confidence: Annotated[
        float, typer.Option(help="confidence level of the intervals; the tests' level is 1 minus it")
    ] = 0.95,
    rows: Annotated[str, typer.Option(help="sections or dotted keys, with commas")] = "algorithm",
    cols: Annotated[str, typer.Option(help="the same; default partition and all keys that would mix")] = "",
) -> None:
    """Print every method's paired difference from a reference, and a ranking over all settings."""
    sys.stdout.write(format_report(compare(collect(name), reference, metric, confidence, rows, cols)))
