"""Check claims against results: `fedray claims NAME [--out PAGE.html] [--estimate]`.

NAME is a paper (`fedtoga`: sweeps/fedtoga/claims.yaml), a sweep with a section `claims`, or a file of either kind. Each
claim gets a line: holds, does not hold, not told apart or not run yet; the comparison that contradicts it most, with
its 95 % interval; the paper's difference; seeds; and the cost of its runs and of the missing ones.
The page has the decisions, the tables behind them with the paper's numbers, and the sweeps' choices.
"""

import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from fedray.analysis.comparison import ENDED
from fedray.analysis.data.collect import SweepTable, iter_specs
from fedray.analysis.output import make_environment, write_or_print
from fedray.analysis.tables.build import build
from fedray.analysis.tables.formats import to_html
from fedray.analysis.tables.published import has_printed
from fedray.analysis.tables.result_table import ResultTable
from fedray.common.entry import Json, Overwrite, format_json
from fedray.common.errors import format_count, format_duration
from fedray.common.output import OutputFile
from fedray.papers.claims.decide import NOT_RUN, Decided, Verdict, decide
from fedray.papers.claims.read import Claims, Price, find_claims, find_runs, sum_hours
from fedray.sweep.file.shipped import get_sweeps_folder


def format_line(one: Decided, price: Price) -> str:
    """Format a claim in one line."""
    counts = Counter(column.status for column in one.columns.values())
    parts = [f"{one.whole.status:<14}  {one.claim.name}: {one.claim.says}"]
    if len(one.columns) > 1:
        parts.append(", ".join(f"{status} in {n} of {len(one.columns)} columns" for status, n in counts.items()))
    printed = one.claim.printed if one.claim.printed is not None else one.whole.printed
    low, high = one.whole.seeds
    most = max((pair.lost for pair in one.whole.pairs), default=0)
    why = "diverged, ended early, or neither at the target"
    parts += [
        format_ours(one.whole),
        "" if printed is None else f"paper: {printed:+.2f}",
        format_count(low, "seed") if low == high else f"{low} to {high} seeds",
        f"{format_count(most, 'seed')} without a number ({why})" if most else "",
    ]
    parts += [format_cost(one, price)]
    return " | ".join(filter(None, parts))


def format_ours(found: Verdict) -> str:
    """Format `closest: fedavg +1.20 (+0.30 .. +2.10), dirichlet α=0.1`; empty if nothing has run."""
    pair = found.closest
    if pair is None:
        return ""
    interval = f" ({pair.interval})" if pair.interval else ""
    return f"closest: {pair.rival} {pair.mean:+.2f}{interval}, {pair.column}"


def format_cost(one: Decided, price: Price) -> str:
    """Format the hours of training spent, and the cost of the missing cells."""
    spent = sum_hours(one.cells)
    parts = [f"cost {format_duration(3600 * spent)}"] if spent else []
    open_cells = one.cells[~one.cells["status"].isin(["finished", *ENDED])]
    missing = [*iter_specs(open_cells)]
    missing += [config for cell in open_cells["cell"] for config in one.sweep.after.get(cell, ())]
    if missing:
        amount = "(not known: its data are not here, or it names a class of your own)"
        if (found := price.estimate(missing)) is not None:
            amount = format_duration(3600 * found[1]) if price.measured else f"{found[0]:.2g} gradients of a batch"
        parts.append(f"{format_count(len(missing), 'cell')} would cost {amount}")
    return ", ".join(parts)


def main(
    name: Annotated[str, typer.Argument(help="a paper, a sweep of this store or a shipped one, or a file of claims")],
    out: Annotated[Path | None, typer.Option(help="write an HTML page, which needs no network")] = None,
    estimate: Annotated[bool, typer.Option("--estimate", help="hours on this machine instead of gradients")] = False,
    as_json: Json = False,
    overwrite: Overwrite = False,
) -> None:
    """Decide claims on the runs of this store."""
    price, (claims, file) = Price(estimate), find_claims(name)
    page = None if out is None else OutputFile("--out", out, (".html",), overwrite, () if file is None else (file,))
    sweeps: dict[str, SweepTable] = {}
    found: list[Decided] = []
    for claim in claims.claims:
        of = claim.sweep or claims.name
        sweeps[of] = sweeps[of] if of in sweeps else find_runs(of, file)
        found.append(decide(claim, sweeps[of]))
    if as_json:
        told = [
            {"name": one.claim.name, "says": one.claim.says, "status": one.whole.status, "seeds": one.whole.seeds}
            | {"columns": {column: verdict.status for column, verdict in one.columns.items()}}
            for one in found
        ]
        print(format_json({"name": claims.name, "claims": told}))
        return
    for one in found:
        write_or_print(format_line(one, price) + "\n", None)
    counts = Counter(one.whole.status for one in found)
    sys.stdout.write(f"{claims.name}: {', '.join(f'{n} {status}' for status, n in counts.items())}\n")
    for metric in dict.fromkeys(one.metric for one in found):
        sys.stdout.write(f"compared: {metric}\n")
    if any(one.whole.status == NOT_RUN for one in found):
        sys.stdout.write("not run yet: fedray sweep sweeps/SWEEP.yaml runs the missing cells\n")
    if page is not None:
        write_or_print(make_page(claims, found, [format_cost(one, price) for one in found]), page)


def make_page(claims: Claims, decided: list[Decided], costs: list[str]) -> str:
    """Return the HTML. costs: cost of each claim, in words."""
    found: dict[tuple[str, str, str], ResultTable] = {}
    for one in decided:
        metrics = [name for name in (one.claim.metric, one.claim.minus or one.claim.mean_with) if name]
        key = one.sweep.name, ",".join(metrics), one.claim.average_over
        if key not in found:
            printed = one.published and all(has_printed(one.published, name) for name in metrics)
            paper = one.published if printed else ""
            found[key] = build(one.sweep, key[1], paper=paper, average_over=one.claim.average_over)
    return (
        make_environment()
        .get_template("claims.html")
        .render(
            name=claims.name,
            sources=claims.sources,
            made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            claims=[
                {
                    "claim": one.claim,
                    "sweep": one.sweep.name,
                    "metric": one.metric,
                    "status": one.whole.status,
                    "cost": cost,
                    "columns": [{"name": name, **_describe_column(found)} for name, found in one.columns.items()],
                }
                for one, cost in zip(decided, costs, strict=True)
            ],
            tables=list(found.values()),
            to_html=to_html,
            choices=[
                (name, text)
                for name in dict.fromkeys(one.sweep.name for one in decided)
                if (text := read_choices(name))
            ],
        )
    )


def read_choices(sweep: str) -> str:
    """Return the comment at the head of a sweep's file: settings that the paper leaves unstated, and our choices."""
    path = get_sweeps_folder() / f"{sweep}.yaml"
    if not path.exists():
        return ""
    head = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        head.append(line.removeprefix("#").strip())
    return " ".join(head)


def _describe_column(found: Verdict) -> dict[str, str]:
    pair = found.closest or (found.pairs[0] if found.pairs else None)
    low, high = found.seeds
    return {
        "status": found.status,
        "rival": pair.rival if pair is not None and pair.gaps else "",
        "gap": "" if pair is None or pair.mean is None else f"{pair.mean:+.2f}",
        "interval": str(pair.interval) if pair is not None and pair.interval else "",
        "printed": "" if found.printed is None else f"{found.printed:+.2f}",
        "seeds": str(low) if low == high else f"{low} to {high}",
    }
